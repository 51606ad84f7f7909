# The sending end of a channel of messages (channels/sender.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.lease cimport Lease
from shmring.channels.message_codec cimport message_t
from shmring.channels.message_writer cimport MessageWriter


cdef class Sender(MessageWriter):
    cdef uint64_t *reserved_word   # of the frame that is leased: its word,
    cdef uint64_t reserved_meta    # bytes before its content,
    cdef uint64_t reserved_nwords  # and what to commit for all of it

    cdef uint64_t quiet            # messages that `send_many` has put into the ring and not announced yet

    cdef void announce_quiet(self) noexcept
    cdef int take_step(self, message_t *m, uint64_t *wanted) except -1
    cdef bint send_encoded(self, message_t *m, int64_t timeout_ns) except -1
    cdef int try_reserve(self, object shape, object dtype, uint64_t *wanted) except -1


cdef tuple as_shape(object shape)
