# Collectives in which ranks have different numbers of rows.
from libc.stdint cimport int64_t

from shmring.base.heap cimport Heap
from shmring.engine.call cimport Executor, call_t


# The rows of each rank: the argument ``counts`` of a call.
cdef class Rows:
    cdef tuple counts            # by rank
    cdef object total
    cdef tuple row               # the shape of a row
    cdef Heap memory             # what the counts of `call_t` lie in

    cdef tuple block_shape(self, int rank)
    cdef tuple whole_shape(self)
    cdef int count(self, call_t *c, x, str name, rows) except -1


cdef object all_to_all_rows(Executor executor, x, out, counts, out_counts, int64_t timeout_ns, async_op)
