# The collective calls of a communicator; abilities that are written in Cython reach its engine through this.
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t
from shmring.engine.engine cimport Engine
from shmring.arrays.reduce cimport reduce_kernel


cdef int64_t nanoseconds(timeout, int64_t default) except -2
cdef int number_of(op, int dtype) except -1
cdef reduce_kernel kernel_for(int op, array_t *x) except NULL


cdef class Calls:
    cdef readonly Engine engine      # abilities written in Python reach it by this
    cdef readonly int rank
    cdef readonly int size
    cdef int64_t timeout_ns

    cdef object prefix(self, int kind, x, out, op, timeout, async_op)
    cdef object perform(self, int kind, array_t *x, array_t *out, int root, op, int64_t timeout_ns, held, kept, result,
                        async_op)
    cdef bint check_root(self, int root) except -1
    cdef tuple one_share_shape(self, x)
    cdef object one_share(self, x)
