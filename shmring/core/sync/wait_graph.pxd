# The wait-for graph: what each rank waits for, in one word that its peers can load.
#
#   bit 0 set, bit 1 counter, bits 2..17 rank + 1 (0: every rank), bits 18..63 the number it must reach
#
# Wakers decide by it whether to wake a rank; after a timeout it leads to the rank that is late. Counters only grow, so
# a wait that is over stays over: the word need not be cleared.
from libc.stdint cimport uint8_t, uint64_t

from shmring.core.c.atomics cimport load_relaxed_u64
from shmring.core.sync.group cimport EVERYONE, counter_of, group_t


cdef inline uint64_t wait_word(int counter, int rank, uint64_t need) noexcept nogil:
    return need << 18 | <uint64_t> (rank + 1) << 2 | <uint64_t> counter << 1 | 1


cdef inline int awaited_rank(uint64_t word) noexcept nogil:
    return <int> (word >> 2 & 0xFFFF) - 1


cdef inline int awaited_counter(uint64_t word) noexcept nogil:
    return word >> 1 & 1


cdef inline uint64_t awaited_number(uint64_t word) noexcept nogil:
    return word >> 18


cdef inline bint lacks(group_t *g, uint64_t word, int rank) noexcept nogil:
    """Whether the wait of ``word`` needs ``rank``, and the counter of that rank is too small."""
    return ((awaited_rank(word) == rank or awaited_rank(word) == EVERYONE)
            and load_relaxed_u64(counter_of(g, awaited_counter(word), rank)) < awaited_number(word))


cdef int find_late(group_t *g, int counter, int rank, uint64_t need, uint8_t *late) noexcept nogil
