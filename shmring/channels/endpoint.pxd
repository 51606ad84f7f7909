# Base classes of the ends of channels (channels/endpoint.pyx).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring._c.atomics cimport load_acquire_u32, load_relaxed_u32
from shmring._c.layout cimport shmring_ring, shmring_ring_role
from shmring.arrays.lease cimport Lease
from shmring.channels.eventfd cimport Notifier
from shmring.memory.mapping cimport Mapping
from shmring.ring.blocking cimport watch_t
from shmring.sync.backoff cimport deadline_of, left_until

cdef extern from "<linux/futex.h>" nogil:
    const uint32_t FUTEX_OWNER_DIED

cdef enum:     # in the role's `closed`, beside 1 and 2: the sender has cut this receiver off (channels/broadcast.pyx)
    DISCONNECTED = 3

cdef enum:     # what a send ends with, beside READY and LATE
    DROPPED = 5


# Whether the holder of the other end has closed it or is dead, as far as one look at its line tells.
cdef inline bint is_gone(shmring_ring_role *role) noexcept nogil:
    return load_acquire_u32(&role.closed) != 0 or load_relaxed_u32(&role.liveness.word) & FUTEX_OWNER_DIED != 0


cdef class Endpoint:
    cdef bint is_closed
    cdef bint is_busy                  # a thread is in a call that has released the GIL

    cdef int prepare(self) except -1
    cdef int close_end(self, bint in_good_order) except -1
    cdef int require_usable(self, str role) except -1


cdef class RingEndpoint(Endpoint):
    cdef readonly object channel       # the memory and its settings (channels/memory.py)
    cdef readonly str role
    cdef Mapping mapping
    cdef shmring_ring *ring
    cdef size_t ring_nbytes
    cdef watch_t watch
    cdef uint32_t generation
    cdef bint is_taken                 # by this process, and not closed
    cdef Lease lease
    cdef Notifier notifier             # if there is a descriptor
    cdef int drops
    cdef bint owned_by_lock            # goes from process to process: the holder of a lock has it (channels/queue.pyx)

    cdef int attach(self, bint again) noexcept
    cdef void note_taken(self, uint32_t only) noexcept
    cdef void leave(self, bint in_good_order) noexcept
    cdef int require_idle(self) except -1
    cdef int require_lease(self, str how) except -1
    cdef int end_lease(self) except -1
    cdef int wait_for(self, const uint64_t *counter, uint64_t until, uint64_t wake_at, int64_t timeout_ns) except -1
    cdef void signal_notifier(self) noexcept
    cdef int look_once(self, const uint64_t *counter, uint64_t until) noexcept
    cdef object peer_lost(self)
    cdef object corrupt(self)
