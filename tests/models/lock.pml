/* The lock between processes (core/sync/lock.pyx): lock_try, lock_further, lock_step, leave_word, lock_release and wake_next.
 * NLOCKERS processes take it, each NTIMES, and store two words while they have it, which are equal whenever it is free.
 * A process that waits sleeps as in waiting.pml; here several sleep with one waiter word and one semaphore.
 *
 * Without DEATH a sleep ends by a post only, so a lost wake-up is a deadlock, which spin reports. With GIVES_UP process 0
 * may wake up and end its wait at any time, as after a timeout. With DEATH process 0 may be killed at each step; then,
 * and only then, the last process begins, which takes the liveness of process 0, and a sleep also ends by a tick: where
 * the lock could be taken, and MOST_TICKS times, so that a process which ticks in vain for ever is a deadlock, too.
 *
 * The mark of a death may come before the last stores of the dead process have arrived (await_last_stores waits for
 * them). The heir of the lock finds the words unequal, as after the death of a process in `put`, and repairs them.
 *
 * To be found faulty: MUTATION =
 *   1  the releasing process does not fence
 *   2  the waiter does not look again after it has announced itself
 *   3  the waiter leaves its word at 0 after it has slept
 *   4  (GIVES_UP) a waiter that gives up does not look whether the lock is free
 *   5  (DEATH) an heir does not wait for the last stores
 *   6  (DEATH) the turn is not compared: a process that takes a dead one's liveness seems to hold its lock
 *   7  (DEATH) an heir stores its id instead of swapping it
 *   8  the lock is released without release
 */
#ifndef MUTATION
#define MUTATION 0
#endif
#ifndef NLOCKERS
#define NLOCKERS 3
#endif
#ifndef NTIMES
#define NTIMES 1
#endif

#define NPROCS NLOCKERS
#define NWORDS 4
#define LOCK 0
#define WAITING 1
#define ONE 2
#define TWO 3
#define MOST_TICKS 4
#ifdef DEATH
#define SLOT(p) ((p) == NLOCKERS - 1 -> 0 : (p))     /* the last one takes the liveness of process 0 */
#else
#define SLOT(p) (p)
#endif

#include "memory.pml"

/* may_die, of a process that has the lock. */
#ifdef DEATH
#define may_leave() if :: mortal -> goto left :: skip fi
#else
#define may_leave() skip
#endif

byte tokens;                    /* of the semaphore */
byte inside;                    /* processes that have the lock and live */
byte turn[NLOCKERS];            /* of each liveness, and whether it is alive */
bit is_alive[NLOCKERS], was_killed;

#define ID (1 + SLOT(me) + NLOCKERS * turn_of_me)
#define slot_of(id) (((id) - 1) % NLOCKERS)
#define turn_in(id) (((id) - 1) / NLOCKERS)

#define can_be_taken                                                                                                   \
    (memory[LOCK] == 0 || !is_alive[slot_of(memory[LOCK])] || turn[slot_of(memory[LOCK])] != turn_in(memory[LOCK]))

/* lock_try and lock_further: 0 late, 1 held, 2 inherited */
inline try_lock() {
    outcome = 0;
    compare_swap(LOCK, 0, ID, won);
    if
    :: won -> outcome = 1
    :: else ->
        load(LOCK, found);
        if
        :: found != 0 ->
            d_step {
                gone = !is_alive[slot_of(found)];
#if MUTATION != 6
                gone = gone || turn[slot_of(found)] != turn_in(found)
#endif
            }
            if
            :: gone ->
#if MUTATION != 5
                buffer[slot_of(found)].count == 0;       /* await_last_stores; the process's own, not its successor's */
#endif
                may_die();
#if MUTATION == 7
                store_release(LOCK, ID);
                won = 1;
#else
                compare_swap(LOCK, found, ID, won);
#endif
                outcome = (won -> 2 : 0)
            :: else
            fi
        :: else
        fi
    fi
}

inline wake_next() {
    compare_swap(WAITING, 1, 0, won);
    may_die();
    if
    :: won && tokens < 3 -> tokens++
    :: else
    fi
}

inline release() {
#if MUTATION == 8
    store_relaxed(LOCK, 0);
#else
    store_release(LOCK, 0);
#endif
    may_die();
#if MUTATION != 1
    full_fence();               /* before_wake */
#endif
    load(WAITING, found);
    if
    :: found -> wake_next()
    :: else
    fi
}

inline take_old_posts() {
    do
    :: tokens > 0 -> tokens--
    :: tokens == 0 -> break
    od
}

inline leave_word() {
#if MUTATION == 3
    skip
#else
    store_relaxed(WAITING, 1);
    if
    :: outcome == 0 ->
#if MUTATION != 4
        full_fence();
        load(LOCK, found);
        if
        :: found == 0 -> wake_next()
        :: else
        fi
#endif
    :: else
    fi
#endif
}

proctype locker(byte me) {
    byte turn_of_me, times, ticks, found, outcome, one, two;
    bit mortal, won, gone, has_slept;
#ifdef DEATH
    mortal = (me == 0);
end_unborn:
    me != NLOCKERS - 1 || was_killed;
#endif
    d_step {                    /* join: take_word in core/sync/keeper.h */
        turn[SLOT(me)]++;
        turn_of_me = turn[SLOT(me)];
        is_alive[SLOT(me)] = 1
    }
    do
    :: times < NTIMES ->
        times++;
        has_slept = 0;
        do
        :: true ->
            try_lock();
            if
            :: outcome != 0 -> break
            :: else
            fi;
#ifdef GIVES_UP
            if
            :: has_slept && me == 0 -> break
            :: skip
            fi;
#endif
            may_die();
            take_old_posts();
            store_release(WAITING, 1);
            full_fence();
            has_slept = 1;
            may_die();
#if MUTATION != 2
            try_lock();
            if
            :: outcome != 0 -> store_relaxed(WAITING, 0); break
            :: else
            fi;
            may_die();
#endif
            if
            :: tokens > 0 -> tokens--
#ifdef DEATH
            :: was_killed && can_be_taken && ticks < MOST_TICKS -> ticks++
#endif
#ifdef GIVES_UP
            :: me == 0
#endif
            fi;
            may_die();
            store_relaxed(WAITING, 0)
        od;
        may_die();
        if
        :: has_slept -> leave_word()
        :: else
        fi;
        if
        :: outcome != 0 ->
            inside++;
            assert(inside == 1);
            load(ONE, one);
            load(TWO, two);
            assert(outcome == 2 || one == two);
            may_leave();
            store_relaxed(ONE, one + 1);
            may_leave();
            store_relaxed(TWO, one + 1);
            may_leave();
            inside--;
            release()
        :: else
        fi
    :: times == NTIMES -> break
    od;
    goto ended;
#ifdef DEATH
left:
    inside--;
died:
    is_alive[SLOT(me)] = 0;
    was_killed = 1;
#endif
ended:
    skip
}

init {
    atomic {
        byte i = 0;
        do
        :: i < NLOCKERS -> run drain(i); run locker(i); i++
        :: else -> break
        od
    }
}
