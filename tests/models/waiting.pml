/* The handshake between a thread that sleeps and the threads that wake it: announce_sleep, withdraw_sleep, sleep_once,
 * end_wait, before_wake and take_sleeper in core/c/backoff.h. All that sleep use it:
 *
 *   wait_until, wake_waiters, wake_all         core/sync/wait.pyx, core/sync/abort.pyx      plain: one waits for the counters of all
 *   await_counter, wake_peer                   core/ring/blocking.pyx                  NWAKERS=1
 *   await_call, wake_next, dismiss_helpers     collectives/engine/team.h                          NWAKERS=1
 *   await_helpers, help                        collectives/engine/team.h                          NWAKERS=1, the countdown is the counter
 *   sleep_until_news, wake_peer, wake_self     collectives/p2p/pair_queue.pyx                 ANY BATCH, with several words in one
 *   await_any                                  core/ring/blocking.pyx                  ANY: one waits for the first of several
 *   await_any, for several ends                core/ring/blocking.pyx                  ANY FUTEX: the same, asleep on the words
 *   wait_for_all                               core/sync/notifier.pyx                  ANY FUTEX
 *   give_up, end_access                        collectives/shared/zero_copy.pyx               NWAKERS=1; MUTATION=1, so by the tick at times
 *
 * Plain: a waiter needs the counters of all NWAKERS to reach one number, and then the next; a waker swaps the word only
 * if the wait is over (is_due). With ANY each waker has a waiter word of its own, and all post the one semaphore.
 *
 * With FUTEX there is no semaphore. A waker that has swapped a word wakes the waiter if that is asleep on the word; the
 * waiter falls asleep on one word after the other, each if it is still what was announced, and else not at all.
 *
 * With BATCH a waker may leave out the fence before every look but its last one: of the pieces of a message.
 *
 * A sleep ends by a post only: without DEATH a lost wake-up is a deadlock, which spin reports. With DEATH a waker may be
 * killed at each step; then, and only then, the sleep also ends by a tick.
 *
 * To be found faulty: MUTATION =
 *   1  the waker does not fence
 *   2  the waiter does not fence
 *   3  the waiter does not look again after it has announced itself
 *   4  the waiter looks first and announces itself afterwards
 *   5  the counter is moved after the look at the waiter word
 *   6  (DEATH) the tick is missing: a waiter waits for ever for a post that died with its waker
 *   7  a waker whose counter is not the last one wanted swaps the waiter's word without posting
 *   8  old posts are taken from the semaphore after the last look and not before the announcement
 *   9  (FUTEX) the waiter falls asleep on words without comparing them
 */
#ifndef MUTATION
#define MUTATION 0
#endif
#ifndef NWAKERS
#define NWAKERS 2
#endif

#define NROUNDS 2
#define NPROCS (NWAKERS + 1)
#define COUNTER(w) (w)      /* one for each waker, which are 0 .. NWAKERS - 1 */
#ifdef ANY
#define NWORDS (2 * NWAKERS)
#define ASLEEP(w) (NWAKERS + (w))      /* 0 awake, else the number that the counter of that waker must reach */
#define NASLEEP NWAKERS
#else
#define NWORDS (NWAKERS + 1)
#define ASLEEP(w) NWAKERS              /* 0 awake, else the number that all counters must reach */
#define NASLEEP 1
#endif

#include "memory.pml"

byte tokens;                /* of the semaphore; FUTEX: 1 once the waiter that is asleep on its words is to wake up */
#ifdef FUTEX
bit is_queued[NWAKERS];     /* the waiter is asleep on the word, or about to be */
#endif
bit is_dead[NWAKERS], has_ended;

#ifdef ANY
#define is_due() load(COUNTER(me), other); if :: other < word -> due = 0 :: else -> due = 1 fi
#else
#define is_due()                                                                                                       \
    j = 0;                                                                                                             \
    do                                                                                                                 \
    :: j < NWAKERS -> load(COUNTER(j), other); if :: other < word -> break :: else -> j++ fi                           \
    :: j == NWAKERS -> break                                                                                           \
    od;                                                                                                                \
    due = (j == NWAKERS)
#endif

proctype waker(byte me) {
    bit mortal = 1, won, due;
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
#ifdef BATCH
        if
        :: count < NROUNDS                  /* wake_if_asleep */
        :: full_fence()
        fi;
#else
        full_fence();                       /* before_wake */
#endif
#endif
        load(ASLEEP(me), word);
#if MUTATION == 5
        store_release(COUNTER(me), count);
#endif
        if
        :: word != 0 ->
            is_due();
#if MUTATION == 7
            compare_swap(ASLEEP(me), word, 0, won);
            won = won && due;
#else
            if
            :: due -> compare_swap(ASLEEP(me), word, 0, won)      /* take_sleeper */
            :: else -> won = 0
            fi;
#endif
            may_die();
            if
#ifdef FUTEX
            :: won ->
                d_step {
                    tokens = tokens | is_queued[me];        /* wake_word */
                    is_queued[me] = 0
                }
#else
            :: won -> tokens++
#endif
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

/* Plain: whether all counters are there. ANY: whether one of them is; the first is taken. */
inline look() {
    j = 0;
    is_ready = 0;
#ifdef ANY
    do
    :: j < NWAKERS -> load(COUNTER(j), seen); if :: seen > taken[j] -> is_ready = 1; break :: else -> j++ fi
    :: j == NWAKERS -> break
    od
#else
    do
    :: j < NWAKERS -> load(COUNTER(j), seen); if :: seen < need -> break :: else -> j++ fi
    :: j == NWAKERS -> is_ready = 1; break
    od
#endif
}

#ifdef ANY
#define word_of(w) (taken[w] + 1)
#else
#define word_of(w) need
#endif

inline take_old_posts() {
    do
    :: tokens > 0 -> tokens--
    :: tokens == 0 -> break
    od
}

inline announce() {
    k = 0;
    do
    :: k < NASLEEP -> store_release(ASLEEP(k), word_of(k)); k++
    :: k == NASLEEP -> break
    od;
#if MUTATION != 2
    full_fence()
#endif
}

#ifdef FUTEX
/* The kernel compares and queues in one step for each word. It loads the word from memory; the stores of the waiter are
 * there, since it has fenced. */
inline queue_up() {
    k = 0;
    do
    :: k < NASLEEP ->
        d_step {
#if MUTATION != 9
            if
            :: memory[ASLEEP(k)] == word_of(k) -> is_queued[k] = 1
            :: else -> tokens = 1
            fi;
#else
            is_queued[k] = 1;
#endif
            k++
        }
    :: k == NASLEEP -> break
    od
}

inline leave_queues() {
    d_step {
        k = 0;
        do
        :: k < NASLEEP -> is_queued[k] = 0; k++
        :: k == NASLEEP -> break
        od;
        tokens = 0
    }
}
#endif

inline withdraw() {
    k = 0;
    do
    :: k < NASLEEP -> store_relaxed(ASLEEP(k), 0); k++
    :: k == NASLEEP -> break
    od
}

proctype waiter(byte me) {
    byte need = 1, seen, j, k, got;
    bit is_ready, is_lost;
#ifdef ANY
    byte taken[NWAKERS];
#define NWAITS (NWAKERS * NROUNDS)
#else
#define NWAITS NROUNDS
#endif
    do
    :: got < NWAITS ->
        look();
        do
        :: is_ready -> break
        :: else ->
#if MUTATION != 8 && !defined(FUTEX)
            take_old_posts();
#endif
#if MUTATION == 4
            look();
            announce();
#else
            announce();
#if MUTATION != 3
            look();
#endif
#if MUTATION == 8
            take_old_posts();
#endif
#endif
            if
            :: is_ready
            :: else ->
#ifdef FUTEX
                queue_up();
#endif
                if
                :: tokens > 0 -> tokens--
#if defined(DEATH) && MUTATION != 6
                :: is_dead[0] || is_dead[NWAKERS - 1]        /* a tick: it checks liveness */
#endif
                fi;
#ifdef FUTEX
                leave_queues()
#endif
            fi;
            withdraw();
            is_lost = is_dead[0] || is_dead[NWAKERS - 1];
            look();
            if
            :: is_ready || is_lost -> break
            :: else
            fi
        od;
        if
        :: is_ready ->
            got++;
#ifdef ANY
            taken[j]++
#else
            need++
#endif
        :: else -> break
        fi
    :: got == NWAITS -> break
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
        run waiter(NWAKERS)
    }
}
