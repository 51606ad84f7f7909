"""Lossy rings: the producer may overwrite the oldest slots, unread, by newer ones.

There both ends move ``head``. The consumer first claims what it is about to read, by setting head's top bit; the
producer moves a head that is not claimed; both by compare-and-swap. So what is read is never overwritten, and the
producer never waits. Positions stay below 2^63 (`format_ring` begins at 0).
"""

from libc.stdint cimport uint32_t

from shmring._c.atomics cimport compare_swap_u64, load_acquire_u64, store_release_u64
from shmring._c.faults cimport fault_point
from shmring.ring.framing cimport FILLER, PIECE, kind_of, nwords_of
from shmring.ring.spsc cimport RING_CORRUPT


cdef enum:
    MAY_GO = 2


cdef int64_t claim_next(consumer_t *c) noexcept nogil:
    cdef uint64_t head
    while True:
        # SYNC overwritten (meets: move_head). What lies below is not ours any more.
        head = load_acquire_u64(&c.ring.head)
        # SYNC filled (meets: ring_commit in ring/spsc.pxd).
        c.cached_tail = load_acquire_u64(&c.ring.tail)
        c.head = unclaimed(head)
        if c.cached_tail == c.head:
            return 0
        # SYNC claimed (meets: look_at_head). From here on the producer leaves alone what is next, and all behind it. A
        # claim that stands already is our own.
        if head != c.head or compare_swap_u64(&c.ring.head, head, claimed(head)):
            break
    fault_point("claimed")
    if c.cached_tail - c.head > c.capacity:
        return RING_CORRUPT
    return <int64_t> (c.cached_tail - c.head)


cdef void give_up_claim(consumer_t *c) noexcept nogil:
    # Fillers that were passed over stay behind: they are nothing.
    cdef uint64_t head = load_acquire_u64(&c.ring.head)
    if head != unclaimed(head):     # else the producer may be moving it
        store_release_u64(&c.ring.head, unclaimed(head))


cdef inline bint is_free(producer_t *p, uint64_t nslots) noexcept nogil:
    return p.capacity - (p.tail - p.cached_head) >= nslots


cdef int look_at_head(producer_t *p, uint64_t nslots) noexcept nogil:
    """1: so many are free; 0: the oldest is being read; MAY_GO: it may be given up; or RING_CORRUPT."""
    # SYNC drained (meets: ring_release in ring/spsc.pxd), SYNC claimed (meets: claim_next).
    cdef uint64_t head = load_acquire_u64(&p.ring.head)
    if p.tail - unclaimed(head) > p.capacity:
        return RING_CORRUPT
    p.cached_head = unclaimed(head)
    return 1 if is_free(p, nslots) else 0 if head != p.cached_head else MAY_GO


cdef inline bint move_head(producer_t *p, uint64_t nslots) noexcept nogil:
    # SYNC overwritten (meets: claim_next): if the consumer was first, it keeps what it claimed.
    if not compare_swap_u64(&p.ring.head, p.cached_head, p.cached_head + nslots):
        return False
    fault_point("overtook")
    p.cached_head += nslots
    return True


cdef int overwrite_slots(producer_t *p, uint64_t nslots, uint64_t *overwritten) noexcept nogil:
    cdef uint64_t missing
    cdef int found
    while not is_free(p, nslots):
        found = look_at_head(p, nslots)
        if found != MAY_GO:
            return found
        missing = nslots - (p.capacity - (p.tail - p.cached_head))
        if move_head(p, missing):
            overwritten[0] += missing
    return 1


cdef int overwrite_frames(producer_t *p, uint64_t nslots, uint64_t *overwritten) noexcept nogil:
    cdef uint64_t word, length
    cdef int found
    while not is_free(p, nslots):
        found = look_at_head(p, nslots)
        if found != MAY_GO:
            return found
        word = (<uint64_t *> p.slots)[p.cached_head & p.mask]
        length = nwords_of(<uint32_t> word)
        if length > p.tail - p.cached_head:
            return RING_CORRUPT
        if move_head(p, length):
            overwritten[0] += FILLER < kind_of(word) < PIECE
    return 1
