# Waiting for the counters of other ranks, and waking ranks that wait for the own ones (core/sync/wait.pyx).
from libc.stdint cimport uint64_t

from shmring.core.sync.backoff cimport patience_t
from shmring.core.sync.group cimport group_t

cdef bint is_ready(group_t *g, int counter, int rank, uint64_t need) noexcept nogil
cdef int wait_until(group_t *g, int counter, int rank, uint64_t need, patience_t *patience) noexcept nogil
cdef void wake_waiters(group_t *g) noexcept nogil
