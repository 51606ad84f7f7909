# Lossy rings: the producer may overwrite the oldest slots, unread, by newer ones (ring/overwrite.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport shmring_ring, shmring_ring_head
from shmring.ring.spsc cimport consumer_t, producer_t


# The top bit of `head` is set while its consumer reads the message there.
cdef inline uint64_t claimed(uint64_t head) noexcept nogil:
    return head | <uint64_t> 1 << 63


cdef inline uint64_t unclaimed(uint64_t head) noexcept nogil:
    return head & ~(<uint64_t> 1 << 63)


# The position in a loaded `head`, of a ring of either kind.
cdef inline uint64_t position_of(shmring_ring *ring, uint64_t head) noexcept nogil:
    return unclaimed(head) if ring.drops else head


# What to wait for until a claimed head is given up: in the order of counters (a signed difference) this number comes
# after the claimed head, and before every position that is not claimed.
cdef inline uint64_t after_claim(uint64_t head) noexcept nogil:
    return unclaimed(head) + (<uint64_t> 3 << 62)


# Claim what is next: so many slots may be read, until ring_release or give_up_claim; 0 if there are none, or
# RING_CORRUPT.
cdef int64_t claim_next(consumer_t *c) noexcept nogil
cdef void give_up_claim(consumer_t *c) noexcept nogil

# Whether one consumer leaves `nslots` free, after giving up, where needed and possible, the oldest slots that it has
# not read: whole frames, or slots. RING_CORRUPT if what stands in the ring is impossible.
cdef int overwrite(producer_t *p, shmring_ring_head *at, uint64_t nslots, bint has_frames) noexcept nogil

# The consumer, which reads nothing now, gets nothing more, and no slot is kept for it.
cdef void disconnect(shmring_ring_head *at) noexcept nogil
