# The collective calls of a communicator; abilities that are written in Cython reach its engine through this.
from libc.stdint cimport int64_t

from shmring.engine cimport Engine


cdef int64_t nanoseconds(timeout, int64_t default) except -2


cdef class Calls:
    cdef readonly Engine engine      # abilities written in Python reach it by this
    cdef readonly int rank
    cdef readonly int size
    cdef int64_t timeout_ns

    cdef object prefix(self, x, out, bint inclusive, op, timeout)
    cdef bint check_root(self, int root) except -1
    cdef tuple one_share_shape(self, x)
    cdef object one_share(self, x)
