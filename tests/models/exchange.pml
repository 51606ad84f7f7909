/* Results in the contributors' slots (collectives/plan/exchange.py): the one place where a rank stores into another rank's outbox.
 *
 * Two ranks exchange NROUNDS rounds. In each, a rank stages a contribution in its slot and publishes, awaits the other's
 * contribution and loads it, stores the result in its place, and releases; then it awaits that the other has released and
 * takes the other's result from its own slot. Every load must return exactly what it is meant to: the contribution of
 * that round, or the result. A claim need not be modelled: the slot of a round has been taken before it is written
 * again, hence released by the other. With DEATH a rank may be killed at each step: the other proceeds or leaves.
 *
 * Mutations that must be found faulty: MUTATION =
 *   1  published is stored without release
 *   2  a round is released before its result is stored
 *   3  consumed is stored without release
 *   4  the result is loaded before the peer's counter
 *   5  the next contribution is staged before the result is taken
 *   6  (DEATH) liveness is not checked
 */
#ifndef MUTATION
#define MUTATION 0
#endif
#ifndef NROUNDS
#define NROUNDS 4
#endif

#define NRANKS 2
#define NSLOTS 2
#define NPROCS NRANKS
#define NWORDS (NRANKS * (NSLOTS + 2))
#if MUTATION == 5
#define SLOT(i, r) (i)
#else
#define SLOT(i, r) ((i) * NSLOTS + (r) % NSLOTS)
#endif
#define PUBLISHED(i) (NRANKS * NSLOTS + (i))
#define CONSUMED(i) (NRANKS * (NSLOTS + 1) + (i))
#define CONTRIBUTION(i, r) (4 * (r) + (i) + 1)
#define RESULT(i, r) (4 * (r) + (i) + 3)      /* for rank i */

#include "memory.pml"

bit is_dead[NRANKS];

#ifdef DEATH
#if MUTATION == 6
#define is_lost(i) false
#else
#define is_lost(i) is_dead[i]
#endif
#else
#define is_lost(i) false
#endif

/* Until the counter `w` of the other rank is at least `need`; if that rank has died, load it once more and give up. */
inline await(w, need) {
    do
    :: atomic { (memory[w] != seen || is_lost(1 - me)) -> was_lost = is_lost(1 - me) }
        load(w, seen);
        if
        :: seen >= need -> break
        :: seen < need && was_lost -> goto gone
        :: else
        fi
    od
}

inline stage(r) {
    store_relaxed(SLOT(me, r), CONTRIBUTION(me, r));
    may_die();
#if MUTATION == 1
    store_relaxed(PUBLISHED(me), (r) + 1);
#else
    store_release(PUBLISHED(me), (r) + 1);
#endif
    may_die()
}

proctype rank(byte me) {
    bit mortal = 1, was_lost;
    byte round, found, seen;
    stage(0);
    do
    :: round < NROUNDS ->
        seen = 0;
        await(PUBLISHED(1 - me), round + 1);
        load(SLOT(1 - me, round), found);
        assert(found == CONTRIBUTION(1 - me, round));
        may_die();
#if MUTATION == 2
        store_release(CONSUMED(me), round + 1);
#endif
        store_relaxed(SLOT(1 - me, round), RESULT(1 - me, round));
        may_die();
#if MUTATION == 3
        store_relaxed(CONSUMED(me), round + 1);
#elif MUTATION != 2
        store_release(CONSUMED(me), round + 1);
#endif
        may_die();
#if MUTATION == 5
        if :: round + 1 < NROUNDS -> stage(round + 1) :: else fi;
#endif
#if MUTATION == 4
        load(SLOT(me, round), found);
#endif
        seen = 0;
        await(CONSUMED(1 - me), round + 1);
#if MUTATION != 4
        load(SLOT(me, round), found);
#endif
        assert(found == RESULT(me, round));
        may_die();
#if MUTATION != 5
        if :: round + 1 < NROUNDS -> stage(round + 1) :: else fi;
#endif
        round++
    :: else -> break
    od;
    goto gone;
#ifdef DEATH
died:
    is_dead[me] = 1;
#endif
gone:
#ifdef DEATH
    is_dead[me] = 1;    /* a rank that gives up leaves: the other treats `left` as a death */
#endif
    skip
}

init {
    atomic {
        byte i = 0;
        do
        :: i < NRANKS -> run drain(i); run rank(i); i++
        :: else -> break
        od
    }
}
