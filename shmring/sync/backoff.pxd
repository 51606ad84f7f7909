# Waiting and waking, as in _c/backoff.h, for cimport: the one handshake between a thread that sleeps and its wakers.
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t

from shmring._c.layout cimport sem_t

cdef extern from "_c/futex.h" nogil:
    const int FUTEX_WAITV_WORDS
    bint has_futex_waitv()
    void wake_word(const uint64_t *word)

cdef extern from "_c/backoff.h" nogil:
    const int BRIEF_LOOKS
    const int LOOKS_PER_CLOCK
    const int64_t FIRST_TICK_NS
    const int MOST_HALVINGS
    const int WAITS_PER_TRIAL

    # What the caller does after `back_off`, beside looking again; each includes those before it.
    enum:
        LOOK
        LOOK_ROUND
        CHECK
        TICK

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

    int64_t now_ns "monotonic_ns"()
    void sleep_on(sem_t *sem, int64_t ns)

    void be_patient(patience_t *patience, int64_t timeout_ns)
    bint is_past_deadline(const patience_t *patience)
    int back_off(patience_t *patience, sleeper_t *sleeper)
    int64_t spin_budget(const sleeper_t *sleeper)
    void learn_spin(const sleeper_t *sleeper, const patience_t *patience, bint has_come)
    void end_wait(patience_t *patience, sleeper_t *sleeper)

    void before_wake()
    bint take_sleeper(uint64_t *at, uint64_t word)

    int sched_yield()
    int sem_init(sem_t *sem, int pshared, unsigned value)
    int sem_post(sem_t *sem)
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
