# The rings of a broadcast, as its sender uses them (channels/broadcast_rings.pyx).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.channels.endpoint cimport Endpoint
from shmring.channels.ring_ends cimport RingSender
from shmring.ring.blocking cimport watch_t
from shmring.ring.spsc cimport producer_t


# One receiver's ring.
ctypedef struct cursor_t:
    producer_t p
    watch_t watch
    bint is_over               # gone, or disconnected


cdef class BroadcastRings(Endpoint):
    cdef readonly object rings     # the memory of all (channels/multi_ring.py)
    cdef RingSender sender         # through the first ring: a `Sender` or a `RecordSender`
    cdef cursor_t *cursors
    cdef int count, when_slow
    cdef int late                  # the receiver that `make_room` gave up waiting for
    cdef uint32_t generation
    cdef bint is_taken

    cdef int announce_to_all(self) except -1
    cdef int load_head(self, cursor_t *c) except -1
    cdef int make_room(self, uint64_t wanted, int64_t timeout_ns) except -1
    cdef bint overwrite(self, cursor_t *c, uint64_t wanted) except -1
    cdef int await_receiver(self, cursor_t *c, uint64_t wanted, int64_t timeout_ns) except -1
    cdef object full(self)
    cdef object corrupt(self)
    cdef void leave(self, bint in_good_order) noexcept
