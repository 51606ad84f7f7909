# Blocking at a ring: one end waits for the counter of the other (ring/blocking.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport sem_t, shmring_ring_counts, shmring_ring_role, shmring_waiter
from shmring.sync.backoff cimport patience_t, sleeper_t

# What a wait ends with, beside READY and UNREADY of sync/group.pxd.
cdef enum:
    LATE = 3           # the timeout is over
    GONE = 4           # the other end closed, or its holder died, and the counter will not come

# How one end waits for the other. The waiters need not be those in the roles: several rings may share a semaphore.
ctypedef struct watch_t:
    shmring_ring_role *own
    shmring_ring_role *other
    shmring_waiter *waiter         # of this end
    shmring_waiter *peer           # of the other end,
    sem_t *wake                    # and what wakes that: its semaphore, or one that several rings share
    shmring_ring_counts *counts    # this end's
    int64_t spin_ns
    int yields
    int64_t tick_ns


# What a waiter word holds while its end sleeps until a counter reaches `count`.
cdef inline uint64_t waiter_word(uint64_t count) noexcept nogil:
    return count << 1 | 1

# Call after moving the own counter to `value`: wakes the other end if that is what it sleeps for.
cdef void wake_peer(watch_t *w, uint64_t value) noexcept nogil

# Wake the other end if it sleeps, whatever for. Call after storing what it has to look at.
cdef void wake_peer_at_once(watch_t *w) noexcept nogil

# Wait for the other end's counter to reach `until`. Without the GIL. READY, GONE, LATE, or UNREADY after a tick or a
# signal: the caller lets Python handle signals and calls again with the same patience. Once asleep, the end is woken at
# `wake_at`, which may be later: a full ring is worth writing to again when a good part of it is free.
cdef int await_counter(watch_t *w, const uint64_t *counter, uint64_t until, uint64_t wake_at,
                       patience_t *patience) noexcept nogil

# The same for some hundred nanoseconds, with the GIL: READY or UNREADY.
cdef int await_briefly(watch_t *w, const uint64_t *counter, uint64_t until) noexcept nogil

# For several rings (ring/wait_any.pyx): where this end sleeps, and how soon.
cdef sleeper_t sleeper_of(watch_t *w, uint64_t wake_at) noexcept nogil
