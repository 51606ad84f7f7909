# Wants: what a rank waits for, in one word that its peers can read.
#
#   bit 0 set, bit 1 what, bits 2..17 whom + 1 (0: everyone), bits 18..63 need
#
# It tells a waker whom to wake, and whoever runs out of patience who is to blame. Counters only grow, so a word that
# was met once stays met: it need not be taken back to be void.
from libc.stdint cimport uint8_t, uint64_t

from shmring._c.atomics cimport load_relaxed_u64
from shmring.sync.wait cimport CONSUMED, EVERYONE, circle_t


cdef inline uint64_t want_of(int what, int whom, uint64_t need) noexcept nogil:
    return need << 18 | <uint64_t> (whom + 1) << 2 | <uint64_t> what << 1 | 1


cdef inline int whom_of(uint64_t want) noexcept nogil:
    return <int> (want >> 2 & 0xFFFF) - 1


cdef inline uint64_t *counter_of(circle_t *c, int what, int who) noexcept nogil:
    return &c.outbox[who].consumed if what == CONSUMED else &c.outbox[who].published


cdef inline bint lacks(circle_t *c, uint64_t want, int j) noexcept nogil:
    """Whether rank ``j``, if it is meant at all, has not come there."""
    return ((whom_of(want) == j or whom_of(want) == EVERYONE)
            and load_relaxed_u64(counter_of(c, want >> 1 & 1, j)) < want >> 18)


cdef int find_late(circle_t *c, int what, int whom, uint64_t need, uint8_t *late) noexcept nogil
