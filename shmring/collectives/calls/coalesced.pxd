# A collective on a list of arrays.
from libc.stdint cimport int64_t

from shmring.collectives.engine.call cimport Executor


cdef object all_reduce_many(Executor executor, arrays, op, int64_t timeout_ns, async_op)
