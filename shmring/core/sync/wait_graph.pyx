"""The wait-for graph: which ranks cause a timeout.

The awaited rank may itself wait for another one. So from each late rank the edges are followed to the ranks it waits
for. The culprits are those without an outgoing edge: slow, stopped, or in no call. In a cycle all of its ranks are.
"""

from libc.string cimport memset

from shmring.core.c.layout cimport SHMRING_LATE_NBYTES


cdef inline bint is_in(uint8_t *ranks, int j) noexcept nogil:
    return ranks[j >> 3] >> (j & 7) & 1


cdef inline void put_in(uint8_t *ranks, int j) noexcept nogil:
    ranks[j >> 3] |= <uint8_t> (1 << (j & 7))


cdef bint add_awaited(group_t *g, int rank, uint8_t *suspects, int nranks) noexcept nogil:
    """Add the ranks that ``rank`` waits for; whether there are any."""
    cdef uint64_t word = load_relaxed_u64(&g.outbox[rank].last_wait)
    cdef bint waits = False
    cdef int j
    for j in range(nranks if word else 0):
        if j != rank and lacks(g, word, j):
            waits = True
            put_in(suspects, j)
    return waits


cdef int find_late(group_t *g, int counter, int rank, uint64_t need, uint8_t *late) noexcept nogil:
    """Write the culprits of this rank's timeout into ``late``, one bit each; returns the first of them.

    The first suspects are the ranks with a counter below ``need``, which this rank awaits of ``rank``.
    """
    cdef uint8_t suspects[SHMRING_LATE_NBYTES]
    cdef uint8_t waiting[SHMRING_LATE_NBYTES]
    cdef uint64_t word = wait_word(counter, EVERYONE, need)
    cdef int nranks = min(g.size, 8 * <int> SHMRING_LATE_NBYTES), j, first = rank
    cdef bint goes_on = True, is_cycle = True
    memset(suspects, 0, SHMRING_LATE_NBYTES)
    memset(waiting, 0, SHMRING_LATE_NBYTES)
    memset(late, 0, SHMRING_LATE_NBYTES)
    for j in range(nranks):
        if j != g.rank and (j == rank or lacks(g, word, j)):
            put_in(suspects, j)
    while goes_on:
        goes_on = False
        for j in range(nranks):
            if is_in(suspects, j) and not is_in(waiting, j) and (j == g.rank or add_awaited(g, j, suspects, nranks)):
                put_in(waiting, j)
                goes_on = True
    for j in range(nranks):
        is_cycle = is_cycle and is_in(waiting, j) == is_in(suspects, j)
    for j in range(nranks - 1, -1, -1):
        if is_in(suspects, j) and j != g.rank and (is_cycle or not is_in(waiting, j)):
            put_in(late, j)
            first = j
    return first
