# One direction of a pipe (channels/half_pipe.pyx).
from libc.stdint cimport int64_t

from shmring.channels.queue cimport JoinableQueue


cdef class HalfPipe(JoinableQueue):
    cdef int send_placed(self, content, int64_t timeout_ns) except -1
    cdef object closed_error(self)
