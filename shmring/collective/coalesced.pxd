# Collectives on lists of arrays.
from libc.stdint cimport int64_t

from shmring.engine.call cimport Executor


cdef object all_reduce_many(Executor executor, arrays, op, int64_t timeout_ns, async_op)
cdef object broadcast_many(Executor executor, arrays, int root, int64_t timeout_ns, async_op)
