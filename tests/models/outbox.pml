/* The discipline of the outbox (collectives/engine/rounds.pyx): claim, publish, await, release, with NSLOTS slots and two counters
 * in each rank's outbox.
 *
 * NRANKS ranks exchange NROUNDS rounds: each writes its slot of a round, awaits the slots of all others and reads them.
 * In round r rank i stores r * NRANKS + i + 1, and a reader must load exactly that: not an older round, not a newer one.
 * With ROOT all ranks publish in round 0 and afterwards only rank 0, which awaits no rank and runs ahead as far as claim
 * allows. Here a wait is an awaited condition; sleeping is the subject of waiting.pml. With DEATH a rank may be killed at
 * each step: the others either proceed or, if the awaited rank is dead and its counter too small, leave. No rank waits
 * for ever, and what is read is still right.
 *
 * Mutations that must be found faulty: MUTATION =
 *   1  published is stored without release
 *   2  a round is released before it is read
 *   3  claim accepts one round less
 *   4  the slot is loaded before the peer's counter
 *   5  the short cut of await_round: a rank that has awaited all others in round r may write up to round r + NSLOTS - 1;
 *      here it writes one more
 *   6  (DEATH) liveness is not checked
 *   7  a rank that is not the root does not release
 */
#ifndef MUTATION
#define MUTATION 0
#endif
#ifndef NRANKS
#define NRANKS 2
#endif
#ifndef NROUNDS
#define NROUNDS 4
#endif

#define NSLOTS 2
#define NPROCS NRANKS
#define NWORDS (NRANKS * (NSLOTS + 2))
#define SLOT(i, r) ((i) * NSLOTS + (r) % NSLOTS)
#define PUBLISHED(i) (NRANKS * NSLOTS + (i))
#define CONSUMED(i) (NRANKS * (NSLOTS + 1) + (i))
#define WORDS(i, r) ((r) * NRANKS + (i) + 1)

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

/* Until the counter `w` of rank `j` is at least `need`; if that rank has died, load it once more and give up. */
inline await(w, need, rank_of) {
    do
    :: atomic { (memory[w] != seen || is_lost(rank_of)) -> was_lost = is_lost(rank_of) }
        load(w, seen);
        if
        :: seen >= need -> break
        :: seen < need && was_lost -> goto gone
        :: else
        fi
    od
}

proctype rank(byte me) {
    bit mortal = 1, was_lost;
    byte round, j, found, free_until = NSLOTS;
    byte seen;
    do
    :: round < NROUNDS ->
        may_die();
#ifdef ROOT
        if
        :: me == 0 || round == 0 ->
#endif
            if
            :: round >= free_until ->                                   /* claim */
                j = 0;
                do
                :: j < NRANKS ->
                    if
                    :: j != me ->
                        load(CONSUMED(j), seen);
#if MUTATION == 3
                        if :: seen < round - NSLOTS -> await(CONSUMED(j), round - NSLOTS, j) :: else fi
#else
                        if :: seen < round + 1 - NSLOTS -> await(CONSUMED(j), round + 1 - NSLOTS, j) :: else fi
#endif
                    :: else
                    fi;
                    j++
                :: else -> break
                od
            :: else
            fi;
            may_die();
            store_relaxed(SLOT(me, round), WORDS(me, round));
            may_die();
#if MUTATION == 1
            store_relaxed(PUBLISHED(me), round + 1);                    /* publish */
#else
            store_release(PUBLISHED(me), round + 1);
#endif
#ifdef ROOT
        :: else
        fi;
#endif
        may_die();
#if MUTATION == 2
        store_release(CONSUMED(me), round + 1);
#endif
        j = 0;
        do
        :: j < NRANKS ->
#ifdef ROOT
            if
            :: j != me && (j == 0 || round == 0) ->
#else
            if
            :: j != me ->
#endif
#if MUTATION == 4
                load(SLOT(j, round), found);
#endif
                load(PUBLISHED(j), seen);                               /* await_round */
                if :: seen < round + 1 -> await(PUBLISHED(j), round + 1, j) :: else fi;
#if MUTATION != 4
                load(SLOT(j, round), found);
#endif
                assert(found == WORDS(j, round))
            :: else
            fi;
            may_die();
            j++
        :: else -> break
        od;
#ifdef ROOT
        if
        :: round == 0 ->
#endif
#if MUTATION == 5
            free_until = round + NSLOTS + 1;
#else
            free_until = round + NSLOTS;
#endif
#ifdef ROOT
        :: else
        fi;
#endif
#if MUTATION == 7
        if :: me != 0 :: else -> store_release(CONSUMED(me), round + 1) fi;
#elif MUTATION != 2
        store_release(CONSUMED(me), round + 1);                         /* release */
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
    is_dead[me] = 1;    /* a rank that gives up leaves: the others treat `left` as a death */
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
