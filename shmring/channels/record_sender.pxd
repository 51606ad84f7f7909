# The sending end of a channel of records (channels/record_sender.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring.channels.ring_ends cimport RingSender


cdef class RecordSender(RingSender):
    cdef int64_t push(self, const char *source, uint64_t count) except -1
    cdef object push_or_drop(self, const char *source, uint64_t count)
    cdef int wait_for_room(self, uint64_t nslots, int64_t timeout_ns) except -1
    cdef int try_reserve(self, object count) except -1
    cdef void announce(self, uint64_t count) noexcept nogil
    cdef uint64_t clip(self, uint64_t count) noexcept


# Records of a caller as a contiguous array of the channel's dtype.
cdef object records_of(object records, object dtype)
cdef object one_record(object record, object dtype)
