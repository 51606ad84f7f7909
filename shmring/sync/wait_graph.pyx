"""Wants: who keeps everybody waiting.

Whom a rank waits for may itself wait for another. So when patience runs out the blame goes on from each to those it
waits for, and stays with who waits for nobody: that one is slow, or stopped, or in no call at all.
"""

from libc.string cimport memset


cdef enum:
    LATE_NBYTES = 200     # of shmring_abort.late


cdef inline bint is_in(uint8_t *ranks, int j) noexcept nogil:
    return ranks[j >> 3] >> (j & 7) & 1


cdef inline void put_in(uint8_t *ranks, int j) noexcept nogil:
    ranks[j >> 3] |= <uint8_t> (1 << (j & 7))


cdef bint pass_blame(circle_t *c, int who, uint8_t *blamed, int nranks) noexcept nogil:
    """Blame those for whom that rank waits; whether there are any."""
    cdef uint64_t want = load_relaxed_u64(&c.outbox[who].wants)
    cdef bint waits = False
    cdef int j
    for j in range(nranks if want else 0):
        if j != who and lacks(c, want, j):
            waits = True
            put_in(blamed, j)
    return waits


cdef int find_late(circle_t *c, int what, int whom, uint64_t need, uint8_t *late) noexcept nogil:
    """Write into ``late``, a bit each, who keeps this rank waiting for ``whom``; the first of them.

    In the beginning all are blamed that have not come to where ``whom`` is awaited. If they all wait, in a circle, they
    stay so.
    """
    cdef uint8_t blamed[LATE_NBYTES]
    cdef uint8_t waiting[LATE_NBYTES]
    cdef uint64_t want = want_of(what, EVERYONE, need)
    cdef int nranks = min(c.size, 8 * LATE_NBYTES), j, first = whom
    cdef bint goes_on = True, is_circle = True
    memset(blamed, 0, LATE_NBYTES)
    memset(waiting, 0, LATE_NBYTES)
    memset(late, 0, LATE_NBYTES)
    for j in range(nranks):
        if j != c.rank and (j == whom or lacks(c, want, j)):
            put_in(blamed, j)
    while goes_on:
        goes_on = False
        for j in range(nranks):
            if is_in(blamed, j) and not is_in(waiting, j) and (j == c.rank or pass_blame(c, j, blamed, nranks)):
                put_in(waiting, j)
                goes_on = True
    for j in range(nranks):
        is_circle = is_circle and is_in(waiting, j) == is_in(blamed, j)
    for j in range(nranks - 1, -1, -1):
        if is_in(blamed, j) and j != c.rank and (is_circle or not is_in(waiting, j)):
            put_in(late, j)
            first = j
    return first
