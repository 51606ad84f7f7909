# The sending and the receiving end of one ring (channels/ring_ends.pyx).
from libc.stdint cimport int64_t

from shmring.channels.endpoint cimport RingEndpoint
from shmring.ring.spsc cimport consumer_t, producer_t


cdef class RingSender(RingEndpoint):
    cdef producer_t p


cdef class RingReceiver(RingEndpoint):
    cdef consumer_t c

    cdef bint has_next(self) except -1
    cdef int wait_for_tail(self, int64_t timeout_ns) except -1
    cdef void give_up_claim(self) noexcept
    cdef object stream_over(self)
