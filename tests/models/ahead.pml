/* A root that runs ahead after an eager exchange (conclude in engine/eager.pyx), and the wake-up that is left out on
 * purpose. In the eager exchange every rank reads the messages of all. A rank that did not have to wait in it stores its
 * counter without a fence and without loading the waiter words; a rank that had to wait loads them. Then the peers make no
 * further call, while the root, rank 0, which waits for no rank, has filled its slots, and sleeps until all have counted.
 *
 * The root's sleep ends by a post, or by a tick, but by a tick only if a peer has ended the eager exchange without a look: so
 * where all have looked, a lost wake-up is a deadlock, which spin reports. A tick at which all counts have arrived is
 * time lost, and there is no second one.
 *
 * To be found faulty: MUTATION =
 *   1  there are no ticks
 *   2  a rank that had to wait in the eager exchange does not load the waiter words either
 *   3  the root trusts posts alone: after a tick it does not look at the counts
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
#define ASLEEP (2 * NPROCS)     /* whether the root sleeps for all peers' counts */

#include "memory.pml"

byte tokens, unlooked, lost;    /* posts; peers that have ended the eager exchange without a look; ticks that came too late */

/* Whether the counters of all peers but oneself have moved. */
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
    store_release(PUBLISHED(me), 1);                    /* speak: the root does not sleep yet */
    do                                                  /* listen */
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
