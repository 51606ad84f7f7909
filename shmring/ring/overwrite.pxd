# Lossy rings: the producer may overwrite the oldest slots, unread, by newer ones.
#
# There both ends move `head`. The consumer first claims the slots that it will read, by setting head's top bit; the
# producer moves a head that is not claimed; both by compare-and-swap. So no slot is overwritten while it is read, and
# the producer never waits. Positions stay below 2^63 (`format_ring` begins at 0).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring._c.atomics cimport (compare_swap_u64, load_acquire_u64, load_relaxed_u32, store_release_u32,
                                 store_release_u64)
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport shmring_ring_head
from shmring.ring.framing cimport FILLER, PIECE, kind_of, nwords_of
from shmring.ring.spsc cimport RING_CORRUPT, ROLE_DISCONNECTED, consumer_t, producer_t


# The top bit of `head` is set while its consumer reads the message there.
cdef inline uint64_t claimed(uint64_t head) noexcept nogil:
    return head | <uint64_t> 1 << 63


cdef inline uint64_t unclaimed(uint64_t head) noexcept nogil:
    return head & ~(<uint64_t> 1 << 63)


# The number to wait for until a claimed head is given up: in the order of counters (a signed difference) it comes after
# the claimed head, and before every position that is not claimed.
cdef inline uint64_t after_claim(uint64_t head) noexcept nogil:
    return unclaimed(head) + (<uint64_t> 3 << 62)


# Claim the next slots: return how many may be read, until ring_release or give_up_claim; 0 if there are none, or
# RING_CORRUPT.
cdef inline int64_t claim_next(consumer_t *c) noexcept nogil:
    cdef uint64_t head
    while True:
        # SYNC overwritten (meets: overwrite). The slots below are the producer's.
        head = load_acquire_u64(&c.own.head)
        # SYNC filled (meets: ring_commit in ring/spsc.pxd). Slots are committed past a disconnected consumer after the
        # store that disconnects it, so that store is visible with them.
        c.cached_tail = load_acquire_u64(&c.ring.tail)
        c.head = unclaimed(head)
        if c.cached_tail == c.head or load_relaxed_u32(&c.own.consumer.closed) == ROLE_DISCONNECTED:
            c.cached_tail = c.head
            return 0
        # SYNC claimed (meets: overwrite). From here on the producer overwrites neither the next slot nor later ones. A
        # head that is claimed already was claimed by this consumer.
        if head != c.head or compare_swap_u64(&c.own.head, head, claimed(head)):
            break
    fault_point("claimed")
    if c.cached_tail - c.head > c.capacity:
        return RING_CORRUPT
    return <int64_t> (c.cached_tail - c.head)


cdef inline void give_up_claim(consumer_t *c) noexcept nogil:
    # Skipped fillers are not released; they hold no data and are skipped again.
    cdef uint64_t head = load_acquire_u64(&c.own.head)
    if head != unclaimed(head):     # else the producer may be moving it
        store_release_u64(&c.own.head, unclaimed(head))


# Whether one consumer leaves `nslots` free, after giving up, where needed and possible, the oldest slots that it has
# not read: whole frames, or slots. RING_CORRUPT if a counter or a frame is impossible.
cdef inline int overwrite(producer_t *p, shmring_ring_head *at, uint64_t nslots, bint has_frames) noexcept nogil:
    cdef uint64_t head, filled, length, word
    cdef bint is_message
    while True:
        # SYNC drained (meets: ring_release in ring/spsc.pxd), SYNC claimed (meets: claim_next).
        head = load_acquire_u64(&at.head)
        filled = p.tail - unclaimed(head)
        if filled > p.capacity:
            return RING_CORRUPT
        if p.capacity - filled >= nslots:
            return 1
        if head != unclaimed(head):
            return 0               # the oldest is being read
        length, is_message = nslots - (p.capacity - filled), True
        if has_frames:
            word = (<uint64_t *> p.slots)[head & p.mask]
            length, is_message = nwords_of(<uint32_t> word), FILLER < kind_of(word) < PIECE
            if length > filled:
                return RING_CORRUPT
        # SYNC overwritten (meets: claim_next): if the consumer was first, it keeps what it claimed.
        if compare_swap_u64(&at.head, head, head + length):
            fault_point("overtook")
            at.overwritten += length if not has_frames else <uint64_t> is_message


# Disconnect a consumer that reads nothing now: it gets nothing more, and no slot is kept for it.
cdef inline void disconnect(shmring_ring_head *at) noexcept nogil:
    # SYNC overwritten (meets: claim_next), as a role that is closed.
    store_release_u32(&at.consumer.closed, ROLE_DISCONNECTED)
