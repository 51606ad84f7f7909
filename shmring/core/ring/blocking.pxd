# Blocking at rings: an end waits for the counter of another (core/ring/blocking.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring.core.c.layout cimport sem_t, shmring_ring_counts, shmring_ring_role
from shmring.core.ring.prospects cimport prospects_t
from shmring.core.sync.backoff cimport patience_t, sleeper_t, spin_t
from shmring.core.sync.notifier cimport Notifier, notice_t

# Results of a wait, beside READY and UNREADY of core/sync/group.pxd.
cdef enum:
    LATE = 3           # the timeout is over
    GONE = 4           # the other end closed, or its holder died, and the counter will not come
    CORRUPT = 5        # a semaphore was overwritten; `drive` raises

cdef enum:
    NO_SOCKET = -1     # the role of the other end shows that it is gone
    CLOSED_SOCKET = -2     # this process has closed it

# How one end waits for another, and wakes it. The semaphores need not be those in the roles: several rings may share
# one.
ctypedef struct watch_t:
    shmring_ring_role *own
    shmring_ring_role *other
    uint64_t *word                 # waiter word of this end, and the semaphore on which it sleeps (if not on the word)
    sem_t *bed
    uint64_t *peer                 # waiter word of the other end, and the semaphore that wakes it
    sem_t *wake
    shmring_ring_counts *counts    # this end's
    int64_t spin_ns
    int yields
    int64_t tick_ns
    int peer_socket                # a pipe or socket that hangs up when the other end is gone, or one of the following
    spin_t spin                    # what this end has learned from its waits
    const prospects_t *prospects   # which processes may take the other end while none has; NULL: any
    int64_t awaited_end            # its number among them
    bint waits_for_ever            # without a timeout: the thread that waits will not take it
    bint writes_notes              # of waits that last long (core/sync/long_waits.pyx)
    notice_t *notice               # which may have this waiter word, where there is a descriptor; else NULL

# A counter of another end, and the number it must reach. Once asleep, the end is woken at `wake_at`, which may be
# later: a producer of a full ring sleeps until a good part of it is free.
ctypedef struct awaited_t:
    watch_t *watch
    const uint64_t *counter
    uint64_t until
    uint64_t wake_at
    sleeper_t sleeper              # while `await_any` runs, or a notifier waits

# Several counters awaited at once: the watch of the first determines how to wait. If all have one semaphore, the end
# sleeps there; else on its waiter words, of which there are at most FUTEX_WAITV_WORDS.
ctypedef struct wait_t:
    awaited_t *awaited
    int n


cdef enum:
    SLEEPS_ON_WORD = 2


# What a waiter word holds while its end sleeps until a counter reaches `count`: on a semaphore, or with SLEEPS_ON_WORD
# on the word itself.
cdef inline uint64_t waiter_word(uint64_t count) noexcept nogil:
    return count << 2 | 1


# Call after moving the own counter to `value`: wakes the other end if that is what it sleeps for.
cdef void wake_peer(watch_t *w, uint64_t value) noexcept nogil

# Wake the end with that waiter word if it sleeps until `value`; `wake_at_once`: if it sleeps at all. Between the store
# that the end must see and this call, the caller calls `before_wake`.
cdef void wake_sleeper(uint64_t *word, sem_t *wake, uint64_t value) noexcept nogil
cdef void wake_at_once(uint64_t *word, sem_t *wake) noexcept nogil

# How the waiter thread of a process sleeps with a waiter word that other processes use, too: one that leaves it takes
# it from others, which look at each tick.
cdef sleeper_t shared_sleeper(uint64_t *word, int64_t tick_ns) noexcept nogil

# Without the GIL. READY when one of the counters has come; GONE: it has not, and an awaited end is gone; LATE; or
# UNREADY after a tick or a signal: the caller lets Python handle signals and calls again with the same patience.
cdef int await_any(awaited_t *awaited, int n, patience_t *patience) noexcept nogil

# Whether no process has taken the other end, and none can.
cdef bint is_vacant(watch_t *w) noexcept nogil

# As `await_any`, but for a few hundred nanoseconds and with the GIL: READY or UNREADY.
cdef int await_briefly(awaited_t *awaited, int n) noexcept nogil

# Whether a pipe or socket has no process at its other end, or is CLOSED_SOCKET.
cdef bint hangs_up(int descriptor) noexcept nogil

# Whether one of the counters has come, without waiting: READY, GONE or LATE.
cdef int look_once(awaited_t *awaited, int n) noexcept nogil

# Have a notifier, with memory for an awaited_t, wait for a counter; the caller has just seen that it has not come.
cdef int arm(Notifier notifier, const awaited_t *awaited) except -1

# The driver of every wait with a timeout: take a step without the GIL, let Python handle signals, and again, until the
# step is not UNREADY. `is_busy` is set meanwhile: other threads may run. `writes_notes`: when the wait lasts long.
ctypedef int (*step_t)(object end, void *what, patience_t *patience) noexcept nogil
cdef int drive(step_t step, object end, void *what, int64_t timeout_ns, bint *is_busy, bint writes_notes) except? -9
cdef int await_step(object end, void *what, patience_t *patience) noexcept nogil      # what: a wait_t
