# Waiting at a ring: one end for the counter of the other (ring/blocking.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport sem_t, shmring_bell, shmring_ring_counts, shmring_ring_role
from shmring.sync.wait cimport patience_t

# What a wait ends with, beside READY and UNREADY of sync/wait.pxd.
cdef enum:
    LATE = 3           # the timeout is over
    GONE = 4           # the other end closed, or its holder died, and the counter will not come

# How one end waits for the other. The bells need not be those in the roles: several rings may share one.
ctypedef struct watch_t:
    shmring_ring_role *own
    shmring_ring_role *other
    shmring_bell *bell             # where this end sleeps
    shmring_bell *others           # where the other does,
    sem_t *wake                    # and what wakes it: that bell's semaphore, or one that several rings share
    shmring_ring_counts *counts    # this end's
    int64_t spin_ns
    int yields
    int64_t tick_ns

# `counter` is the one that this end has just moved, at `value`: wake the other if that is what it sleeps for.
cdef void ring_bell(watch_t *w, uint64_t value) noexcept nogil

# Wait for the other end's counter to come to `until`. Without the GIL. READY, GONE, LATE, or UNREADY after a tick or a
# signal: the caller lets Python handle signals and calls again with the same patience. Once asleep it wants to be woken
# at `rouse_at`, which may be later: a full ring is worth writing to again when a good part of it is free.
cdef int await_counter(watch_t *w, const uint64_t *counter, uint64_t until, uint64_t rouse_at,
                       patience_t *patience) noexcept nogil

# The same for some hundred nanoseconds, with the GIL: READY or UNREADY.
cdef int await_briefly(watch_t *w, const uint64_t *counter, uint64_t until) noexcept nogil
