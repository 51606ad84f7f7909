# The abort record of a communicator: the first failure, written once, loaded by every rank that waits
# (core/sync/abort.pyx).
from libc.stdint cimport uint32_t, uint64_t

from shmring.core.sync.group cimport group_t

cdef enum:
    WRITTEN = 2      # the state of a record that is complete (core/sync/abort.pyx)

cdef void wake_rank(group_t *g, int rank, uint64_t word) noexcept nogil
cdef void wake_all(group_t *g) noexcept nogil

cdef bint in_trouble(group_t *g) noexcept nogil
cdef bint is_reported(group_t *g) noexcept nogil
cdef void insist_on_report(group_t *g) noexcept nogil
cdef void report_trouble(group_t *g, uint32_t cause, int about, uint64_t round, uint64_t mine, uint64_t theirs,
                         const char *reason) noexcept nogil
cdef void report_overwritten(group_t *g) noexcept nogil
cdef void report_late(group_t *g, int counter, int rank, uint64_t need, uint64_t mine) noexcept nogil
