# Waiting and waking, as in core/c/backoff.h, for cimport: the one handshake between a thread that sleeps and its
# wakers.
#
#   sleeper                    where              waiter word; semaphore or word   wakers
#   a rank in a collective     core/sync/wait          asleep; wake, of its outbox      wake_waiters, wake_all
#   a rank in a failed call    collectives/shared/zero_copy   the same                         wake_all
#   a rank in a message        collectives/p2p/pair_queue     pair_queues_asleep, _wake        wake_if_asleep, wake_all
#   a helper thread, its rank  collectives/engine/team.h      in private memory                call_helpers, help
#   an end of a ring           core/ring/blocking      asleep; wake, of its role        wake_peer, wake_at_once
#   a wait for several rings   core/ring/blocking      of each; the words themselves    the same
#   the waiter thread          core/sync/notifier      the same, where asked for        the same
#   a process at a lock        core/sync/lock          waiting; woken, of the lock      lock_release
#   a thread at a turn         core/sync/turn          nwaiting, a count; given         give_turn
#   a reader of a value        channels/latest    waiting; woken                   put_value
#   join() of a queue          channels/queue     joining; joined                  task_done
#   put() without a place      channels/queue     place_awaited; place_given       get, give_place
#
# Threads of one process that wait for an object of Python's sleep in a queue of the standard library. A wait that no
# process ends by a wake-up looks by the pace of core/base/pace.py.
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t

from shmring.core.c.layout cimport sem_t

cdef extern from "core/c/futex.h" nogil:
    const int FUTEX_WAITV_WORDS
    ctypedef struct futex_t "shmring_futex":
        pass
    bint has_futex_waitv()
    futex_t futex_of(const uint64_t *word, uint64_t value)
    void sleep_on_futexes(const futex_t *futexes, unsigned n, int64_t ns)
    void sleep_on_futex(const futex_t *futex, int64_t ns)
    void wake_word(const uint64_t *word)

cdef extern from "core/c/backoff.h" nogil:
    const int BRIEF_LOOKS
    const int LOOKS_PER_CLOCK
    const int64_t FIRST_TICK_NS
    const int MOST_HALVINGS
    const int WAITS_PER_TRIAL
    const int FEW_YIELDS
    const int64_t SOON_NS
    const int64_t FIRST_CROWD_NS
    const int64_t LONGEST_CROWD_NS

    # What the caller does after `back_off`, beside looking again; each includes those before it.
    enum:
        LOOK
        LOOK_ROUND
        CHECK
        TICK
        BROKEN

    # Stages of a wait.
    enum:
        FRESH
        SPINS
        YIELDS
        SLEEPS

    ctypedef struct patience_t "shmring_patience":
        int stage
        int looks
        int64_t began_ns
        int64_t tick_ns
        int64_t timeout_ns
        int64_t deadline_ns

    ctypedef struct spin_t "shmring_spin":
        uint32_t halvings

    ctypedef struct sleeper_t "shmring_sleeper":
        uint64_t *word
        uint64_t what
        sem_t *wake
        sleeper_t *next
        int64_t spin_ns
        int yields
        int64_t tick_ns
        spin_t *spin
        int looks

    int64_t now_ns "monotonic_ns"()
    void sleep_on(sem_t *sem, int64_t ns)

    void be_patient(patience_t *patience, int64_t timeout_ns)
    bint is_past_deadline(patience_t *patience)
    int back_off(patience_t *patience, sleeper_t *sleeper)
    int64_t spin_budget(const sleeper_t *sleeper)
    void learn_spin(const sleeper_t *sleeper, const patience_t *patience, bint has_come)
    void end_wait(patience_t *patience, sleeper_t *sleeper)

    bint is_crowded(int64_t now)
    void note_long_yield(uint64_t now)
    void note_short_yield()

    void announce_sleep(sleeper_t *sleeper)
    void withdraw_sleep(sleeper_t *sleeper)

    void before_wake()
    bint take_sleeper(uint64_t *at, uint64_t word)

    int sched_yield()
    int sem_init(sem_t *sem, int pshared, unsigned value)
    void sem_post "post_if_sound"(sem_t *sem)
    int sem_wait(sem_t *sem)


# One timeout over several waits: take the deadline once, and what is left of it before each wait.
cdef inline int64_t deadline_of(int64_t timeout_ns) noexcept nogil:
    cdef int64_t now
    if timeout_ns <= 0:
        return 0
    now = now_ns()
    return now + min(timeout_ns, INT64_MAX - now)


cdef inline int64_t left_until(int64_t deadline_ns, int64_t timeout_ns) noexcept nogil:
    return timeout_ns if timeout_ns <= 0 else max(<int64_t> 0, deadline_ns - now_ns())
