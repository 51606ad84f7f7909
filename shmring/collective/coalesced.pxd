# Collectives on lists of arrays.
from libc.stdint cimport int64_t

from shmring.engine.engine cimport Engine


cdef object all_reduce_many(Engine engine, arrays, op, int64_t timeout_ns, async_op)
cdef object broadcast_many(Engine engine, arrays, int root, int64_t timeout_ns, async_op)
