# Collectives in which ranks have different numbers of rows: the forms with counts= of the calls of the same names.
# Each takes the user's arguments, checks them, makes the call now or later, and returns what the user gets.
from libc.stdint cimport int64_t

from shmring.engine.call cimport Executor


cdef object all_gather_rows(Executor executor, x, out, counts, int64_t timeout_ns, async_op)
cdef object gather_rows(Executor executor, x, out, counts, int root, int64_t timeout_ns, async_op)
cdef object scatter_rows(Executor executor, x, out, counts, int root, int64_t timeout_ns, async_op)
cdef object reduce_scatter_rows(Executor executor, x, out, counts, op, int64_t timeout_ns, async_op)
cdef object all_to_all_rows(Executor executor, x, out, counts, out_counts, int64_t timeout_ns, async_op)
