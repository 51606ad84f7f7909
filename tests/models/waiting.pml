/* The waiting handshake (sync/wait.pyx, sleep.h; the same between doze and ring_bell in p2p/pair_queue.pyx). A sleeper needs the
 * counters of all NWAKERS others to reach one number, and then the next. It says in `asleep` what it waits for, fences,
 * looks once more and only then sleeps. A waker moves its counter, fences, and looks whether somebody sleeps for what
 * is now complete; of several wakers the swap makes one post.
 *
 * A sleep here ends by a post only: without deaths there are no ticks, so a lost wake-up is a deadlock, which spin
 * reports. With DEATH a waker may be killed at each step; then, and only then, the sleep also ends by a tick.
 *
 * To be found faulty: MUTATION =
 *   1  the waker does not fence
 *   2  the sleeper does not fence
 *   3  the sleeper does not look again after it has announced itself
 *   4  the sleeper looks first and announces itself afterwards
 *   5  the counter is moved after the look at the sleepers
 *   6  (DEATH) the tick is missing: a sleeper waits for ever for a post that died with its waker
 *   7  a waker whose counter is not the last one wanted takes the sleeper's word away without waking it
 */
#ifndef MUTATION
#define MUTATION 0
#endif
#ifndef NWAKERS
#define NWAKERS 2
#endif

#define NROUNDS 2
#define NPROCS (NWAKERS + 1)
#define NWORDS (NWAKERS + 1)
#define COUNTER(w) (w)      /* one for each waker, which are 0 .. NWAKERS - 1 */
#define ASLEEP NWAKERS      /* 0 awake, else the number that all counters must reach */

#include "memory.pml"

byte tokens;                /* of the semaphore */
bit is_dead[NWAKERS], has_ended;

proctype waker(byte me) {
    bit mortal = 1, won;
    byte count, word, other, j;
    do
    :: count < NROUNDS ->
        may_die();
        count++;
#if MUTATION != 5
        store_release(COUNTER(me), count);
#endif
        may_die();
#if MUTATION != 1
        full_fence();
#endif
        load(ASLEEP, word);
#if MUTATION == 5
        store_release(COUNTER(me), count);
#endif
        if
        :: word != 0 ->
            j = 0;
            do                              /* is_due */
            :: j < NWAKERS -> load(COUNTER(j), other); if :: other < word -> break :: else -> j++ fi
            :: j == NWAKERS -> break
            od;
#if MUTATION == 7
            compare_swap(ASLEEP, word, 0, won);
            won = won && j == NWAKERS;
#else
            if
            :: j == NWAKERS -> compare_swap(ASLEEP, word, 0, won)
            :: else -> won = 0
            fi;
#endif
            may_die();
            if
            :: won -> tokens++
            :: else
            fi
        :: else
        fi
    :: count == NROUNDS -> break
    od;
    goto gone;
#ifdef DEATH
died:
    is_dead[me] = 1;
#endif
gone:
    skip
}

inline look() {              /* is_ready */
    j = 0;
    do
    :: j < NWAKERS -> load(COUNTER(j), seen); if :: seen < need -> break :: else -> j++ fi
    :: j == NWAKERS -> break
    od;
    is_ready = (j == NWAKERS)
}

proctype sleeper(byte me) {
    byte need = 1, seen, j;
    bit is_ready, is_lost;
    do
    :: need <= NROUNDS ->
        look();
        do
        :: is_ready -> break
        :: else ->
#if MUTATION == 4
            look();
            store_relaxed(ASLEEP, need);
            full_fence();
#else
            store_relaxed(ASLEEP, need);
#if MUTATION != 2
            full_fence();
#endif
#if MUTATION != 3
            look();
#endif
#endif
            if
            :: is_ready
            :: else ->
                if
                :: tokens > 0 -> tokens--
#if defined(DEATH) && MUTATION != 6
                :: is_dead[0] || is_dead[NWAKERS - 1]        /* a tick: it looks after the living */
#endif
                fi
            fi;
            store_relaxed(ASLEEP, 0);
            is_lost = is_dead[0] || is_dead[NWAKERS - 1];
            look();
            if
            :: is_ready || is_lost -> break
            :: else
            fi
        od;
        if
        :: is_ready -> need++
        :: else -> break
        fi
    :: need > NROUNDS -> break
    od;
    has_ended = 1;
    assert(is_ready || is_lost)
}

init {
    atomic {
        byte i = 0;
        do
        :: i < NPROCS -> run drain(i); i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NWAKERS -> run waker(i); i++
        :: else -> break
        od;
        run sleeper(NWAKERS)
    }
}
