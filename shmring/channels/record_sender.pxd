# The sending end of a channel of records (channels/record_sender.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring.channels.ring_ends cimport RingSender


cdef class RecordSender(RingSender):
    cdef int64_t push(self, const char *source, uint64_t count) except -1
    cdef int await_room(self, uint64_t count, int64_t timeout_ns) except -1
    cdef bint try_reserve(self, uint64_t most) except -1
    cdef int overwrite_for(self, uint64_t count) except -1
    cdef void announce(self, uint64_t count) noexcept nogil
