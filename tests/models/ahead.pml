/* A root that runs ahead after an eager exchange (conclude in collectives/engine/eager.pyx), and the wake-up that a rank may omit.
 *
 * In the eager exchange every rank reads the line of every other rank. A rank that did not wait in it advances its
 * consumed counter without a fence and without a load of the waiter words; a rank that waited loads them. Then the peers
 * make no further call, while the root, rank 0, has filled its slots and sleeps until all consumed counters have moved.
 *
 * The root's sleep ends by a post, or by a tick, but by a tick only if a peer has ended the eager exchange without loading
 * the waiter word. So where all peers have loaded it, a lost wake-up is a deadlock, which spin reports. A tick at which
 * all counters have already moved is a delay, and there is at most one.
 *
 * Mutations that must be found faulty: MUTATION =
 *   1  there are no ticks
 *   2  a rank that waited in the eager exchange does not load the waiter word either
 *   3  the root relies on posts alone: after a tick it does not load the counters
 */
#ifndef MUTATION
#define MUTATION 0
#endif
#ifndef NPEERS
#define NPEERS 2
#endif

#define NPROCS (NPEERS + 1)
#define NWORDS (2 * NPROCS + 1)
#define PUBLISHED(i) (i)
#define CONSUMED(i) (NPROCS + (i))
#define ASLEEP (2 * NPROCS)     /* the waiter word: the root sleeps until all peers have counted */

#include "memory.pml"

byte tokens, unlooked, lost;    /* posts; peers that did not load the waiter word; ticks after all had counted */

/* Whether the counters of all other ranks have moved. */
inline all_moved(counters, have) {
    have = 1;
    j = 0;
    do
    :: j < NPROCS ->
        if
        :: j != me -> load(counters + j, seen); if :: seen == 0 -> have = 0; break :: else fi
        :: else
        fi;
        j++
    :: else -> break
    od
}

proctype peer(byte me) {
    byte j, seen, word;
    bit have, won, had_to_wait;
    store_release(PUBLISHED(me), 1);                    /* publish: the root does not sleep yet */
    do                                                  /* await the others */
    :: all_moved(PUBLISHED(0), have);
        if :: have -> break :: else -> had_to_wait = 1 fi
    od;
#if MUTATION == 2
    had_to_wait = 0;
#endif
    store_release(CONSUMED(me), 1);                     /* conclude */
    if
    :: had_to_wait ->                                   /* wake_waiters */
        full_fence();
        load(ASLEEP, word);
        if
        :: word ->
            j = 1;
            do                                          /* is_due */
            :: j < NPROCS -> load(CONSUMED(j), seen); if :: seen == 0 -> break :: else -> j++ fi
            :: j == NPROCS -> break
            od;
            if
            :: j == NPROCS ->
                compare_swap(ASLEEP, word, 0, won);
                if :: won -> tokens++ :: else fi
            :: else
            fi
        :: else
        fi
#if MUTATION == 2
    :: else
#else
    :: else -> unlooked++
#endif
    fi
}

proctype root(byte me) {
    byte j, seen;
    bit have, is_tick;
    store_release(PUBLISHED(me), 1);
    do                                                  /* the eager exchange */
    :: all_moved(PUBLISHED(0), have);
        if :: have -> break :: else fi
    od;
    do                                                  /* claim of the first slot that is not free */
    :: all_moved(CONSUMED(0), have);
        if :: have -> break :: else fi;
        store_relaxed(ASLEEP, 1);
        full_fence();
        all_moved(CONSUMED(0), have);
        if
        :: have -> is_tick = 0
        :: else ->
sleep:
            if
            :: tokens > 0 -> tokens--; is_tick = 0
#if MUTATION != 1
            :: unlooked > 0 && tokens == 0 -> is_tick = 1
#endif
            fi
        fi;
        if
        :: is_tick ->
            j = 1;
            do
            :: j < NPROCS && memory[CONSUMED(j)] -> j++
            :: else -> break
            od;
            lost = lost + (j == NPROCS);
            assert(lost <= 1);
#if MUTATION == 3
            goto sleep
#endif
        :: else
        fi;
        store_relaxed(ASLEEP, 0)
    od
}

init {
    atomic {
        byte i = 0;
        do
        :: i < NPROCS -> run drain(i); i++
        :: else -> break
        od;
        run root(0);
        i = 1;
        do
        :: i < NPROCS -> run peer(i); i++
        :: else -> break
        od
    }
}
