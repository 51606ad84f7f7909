# All pair queues of a rank.
from libc.stdint cimport uint64_t

from shmring.p2p.pair_queue cimport pair_queues_t
from shmring.sync.backoff cimport patience_t

# The result of pumping the queues, as bits: MOVED, and this.
cdef enum:
    NEEDS_MATCHING = 2 # a message is complete, or one begins for which a request is posted

cdef enum:
    LONGEST_RUN_NS = 10000000     # of moving messages; then other threads of this process get the turn


cdef int pump(pair_queues_t *l) noexcept nogil
cdef int spin(pair_queues_t *l, patience_t *patience) noexcept nogil
cdef void wake_self(pair_queues_t *l) noexcept nogil
cdef int sleep_until_news(pair_queues_t *l, patience_t *patience, uint64_t changes) noexcept nogil
cdef bint has_news(pair_queues_t *l, int j) noexcept nogil
