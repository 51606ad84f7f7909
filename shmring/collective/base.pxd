# The part of a communicator that all collective calls share. Calls written in Cython reach the engine through it.
from libc.stdint cimport int64_t

from shmring.base.timeouts cimport timeout_to_ns
from shmring.arrays.array_view cimport array_t
from shmring.kernel.reduce cimport reduce_kernel
from shmring.engine.engine cimport Engine


cdef int number_of(op, int dtype) except -1
cdef reduce_kernel kernel_for(int op, array_t *x) except NULL
cdef int refuse_out(array_t *x, array_t *out, size_t times, size_t parts) except -1


cdef inline int64_t resolve_timeout(timeout, int64_t default) except -2:
    """A public timeout as nanoseconds, -1: no limit. Ellipsis stands for ``default``."""
    return default if timeout is ... else timeout_to_ns(timeout)


cdef inline int check_out(array_t *x, array_t *out, size_t times, size_t parts) except -1:
    """Raise unless ``out`` has ``times / parts`` as many elements as ``x``, and its dtype."""
    if out.dtype == x.dtype and out.count * parts == x.count * times:
        return 0
    return refuse_out(x, out, times, parts)


cdef class CollectiveBase:
    cdef readonly Engine engine      # mixins written in Python reach it by this
    cdef readonly int rank
    cdef readonly int size
    cdef readonly object object_turn     # of the calls that consist of several collectives (shmring.sync.turn)
    cdef int64_t timeout_ns

    cdef object perform(self, int kind, array_t *x, array_t *out, int root, op, int64_t timeout_ns, held, kept, result,
                        async_op)
    cdef bint check_root(self, int root) except -1
    cdef tuple block_shape(self, x)
    cdef object new_block(self, x)
