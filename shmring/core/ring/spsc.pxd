# The ring: one producer, one consumer (in a broadcast several), equal slots in shared memory. Everything here is
# non-blocking and wait-free; waiting is composed above. The contract, with examples, is in docs/rings.md.
#
# Bodies are here, not in core/ring/spsc.pyx, so that they are inlined into the modules that cimport them. In every
# function the own counter is private and merely announced; the other side's is loaded (acquire) only when the last seen
# value is too small: each load fetches its line from the core that is about to write it again.
#
# No value that a peer wrote is trusted: a counter that went backwards or too far is refused (RING_CORRUPT), and the
# geometry is copied into private memory when an end is attached, so no access leaves the slots.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from shmring.core.c.atomics cimport load_acquire_u32, load_acquire_u64, load_relaxed_u32, store_release_u64
from shmring.core.c.layout cimport shmring_ring, shmring_ring_head, shmring_ring_role

cdef extern from "<linux/futex.h>" nogil:
    const uint32_t FUTEX_OWNER_DIED
    const uint32_t FUTEX_TID_MASK

cdef enum:
    RING_CORRUPT = -1      # the other side's counter is impossible
    RING_FOREIGN = -2      # no ring here, or not one that fits
    RING_TAKEN = -3        # this end has, or had, a holder

# States of an end: not taken yet; held by a living process; closed in good order; its holder died or left without
# closing.
cdef enum:
    END_ABSENT = 0
    END_HERE = 1
    END_CLOSED = 2
    END_LOST = 3

# What a role's `closed` holds.
cdef enum:
    ROLE_CLOSED = 1
    ROLE_LEFT = 2
    ROLE_DISCONNECTED = 3  # a consumer, by the producer

# One side's private state. Invariants, the second whatever the consumer writes:
#   tail - cached_head <= capacity;   reserved <= capacity - (tail - cached_head)
ctypedef struct producer_t:
    uint64_t tail          # slots ever committed, as announced in ring.tail
    uint64_t cached_head   # the least head when last looked at
    uint64_t reserved      # slots from tail on that are being written
    uint32_t nheads
    uint64_t capacity
    uint64_t mask
    size_t slot_nbytes
    char *slots
    shmring_ring *ring

ctypedef struct consumer_t:
    uint64_t head          # slots ever released, as announced in own.head
    uint64_t cached_tail   # ring.tail when last looked at
    uint64_t peeked        # slots from head on that are being read
    uint64_t capacity
    uint64_t mask
    size_t slot_nbytes
    char *slots
    shmring_ring *ring
    shmring_ring_head *own


# Making, attaching, closing (core/ring/spsc.pyx). `base` lies on a multiple of 128 bytes; `nslots` is a power of two.
# Attaching returns 0, a RING_ code, or an errno where the liveness cannot be held; the mapping must outlive
# the end. `again`: the end may have had a holder that is gone; the caller ensures that only one process at a
# time tries. Not `held`: the role is not taken; a lock that the caller keeps hands the end from process to process, and
# the next holder resumes there. `slot_nbytes`: what the caller takes for granted, 0: nothing; a ring of other slots is
# foreign. `number`: which of the consumers.
# Closing in good order is a promise that nothing is missing; without it the other side sees END_LOST.
cdef size_t ring_control_nbytes(uint64_t nheads=*) noexcept nogil
cdef void ring_format(void *base, uint64_t nslots, uint64_t slot_nbytes, uint64_t start,
                      uint64_t nheads=*) noexcept nogil
cdef int ring_attach_producer(producer_t *p, void *base, size_t nbytes, bint again=*, bint held=*,
                              size_t slot_nbytes=*) noexcept nogil
cdef int ring_attach_consumer(consumer_t *c, void *base, size_t nbytes, bint again=*, bint held=*,
                              size_t slot_nbytes=*, uint64_t number=*) noexcept nogil
cdef void ring_resume_producer(producer_t *p) noexcept nogil
cdef void ring_resume_consumer(consumer_t *c) noexcept nogil
cdef void ring_close_producer(producer_t *p, bint in_good_order) noexcept nogil
cdef void ring_close_consumer(consumer_t *c, bint in_good_order) noexcept nogil
cdef void ring_leave(shmring_ring_role *role, bint in_good_order) noexcept nogil
cdef int ring_end_state(shmring_ring_role *role) noexcept nogil

# The least head of several consumers, those that are gone left out; or one that is impossible, if one of them is.
cdef uint64_t ring_least_head(producer_t *p) noexcept nogil

# Where in a buffer its ring begins, and how many bytes there are from there on.
cdef char *ring_in(const Py_buffer *memory, size_t *nbytes) noexcept nogil


# Whether the holder of an end has closed it or is dead, as far as one look at its line tells. A word with an id beside
# the mark is one that a process takes at this moment (core/sync/keeper.h).
cdef inline bint ring_is_gone(shmring_ring_role *role) noexcept nogil:
    return (load_acquire_u32(&role.closed) != 0
            or load_relaxed_u32(&role.liveness.word) & (FUTEX_OWNER_DIED | FUTEX_TID_MASK) == FUTEX_OWNER_DIED)


# ---- Producer ----

# Slots that may be written now, looked up afresh only if fewer than `wanted` are known to be free; or RING_CORRUPT.
cdef inline int64_t ring_free(producer_t *p, uint64_t wanted) noexcept nogil:
    cdef uint64_t head
    if p.capacity - (p.tail - p.cached_head) < wanted:
        # SYNC drained (meets: ring_release). Once the new head is seen, the consumer's reads of the slots below it are
        # over, and they may be overwritten.
        head = load_acquire_u64(&p.ring.heads[0].head) if p.nheads == 1 else ring_least_head(p)
        if head - p.cached_head > p.tail - p.cached_head:
            return RING_CORRUPT
        p.cached_head = head
    return <int64_t>(p.capacity - (p.tail - p.cached_head))


# Up to `wanted` contiguous slots to write in place; `count` is their number (fewer when nearly full, or where the ring
# wraps). NULL if there is none (count 0) or on error (count RING_CORRUPT). Replaces a reservation that is still open.
cdef inline char *ring_reserve(producer_t *p, uint64_t wanted, int64_t *count) noexcept nogil:
    cdef uint64_t index = p.tail & p.mask
    p.reserved = 0
    count[0] = ring_free(p, wanted)
    if count[0] <= 0:
        return NULL
    p.reserved = min(min(<uint64_t>count[0], wanted), p.capacity - index)
    count[0] = <int64_t>p.reserved
    return p.slots + index * p.slot_nbytes


# Hand over the first `n` reserved slots (at most those reserved) and give up the others.
cdef inline void ring_commit(producer_t *p, uint64_t n) noexcept nogil:
    p.tail += min(n, p.reserved)
    p.reserved = 0
    # SYNC filled (meets: ring_ready). The payload must be visible before the count that announces it. This store is all
    # that publishes: a producer killed before it has published nothing, after it everything.
    store_release_u64(&p.ring.tail, p.tail)


# Give up the reserved slots; the consumer sees nothing of them.
cdef inline void ring_abort(producer_t *p) noexcept nogil:
    p.reserved = 0


# Copy in as many of `n` slots as there is room for; return their number, or RING_CORRUPT. One store announces all.
cdef inline int64_t ring_try_push(producer_t *p, const void *source, uint64_t n) noexcept nogil:
    cdef uint64_t index = p.tail & p.mask, first
    cdef int64_t free = ring_free(p, n)
    if free <= 0:
        return free
    n = min(n, <uint64_t>free)
    first = min(n, p.capacity - index)
    memcpy(p.slots + index * p.slot_nbytes, source, first * p.slot_nbytes)
    if n > first:
        memcpy(p.slots, <const char *>source + first * p.slot_nbytes, (n - first) * p.slot_nbytes)
    p.reserved = n
    ring_commit(p, n)
    return <int64_t>n


# ---- Consumer ----

# Slots that may be read now, looked up afresh only if fewer than `wanted` are known to be filled; or RING_CORRUPT.
cdef inline int64_t ring_ready(consumer_t *c, uint64_t wanted) noexcept nogil:
    cdef uint64_t tail
    if c.cached_tail - c.head < wanted:
        # SYNC filled (meets: ring_commit). Once the new tail is seen, so are the payloads of the slots below it.
        tail = load_acquire_u64(&c.ring.tail)
        if tail - c.head > c.capacity or tail - c.head < c.cached_tail - c.head:
            return RING_CORRUPT
        c.cached_tail = tail
    return <int64_t>(c.cached_tail - c.head)


# Up to `wanted` contiguous slots to read in place; `count` is their number (fewer when nearly empty, or where the ring
# wraps). NULL if there is none (count 0) or on error (count RING_CORRUPT). Peeking again starts from the same slot.
cdef inline const char *ring_peek(consumer_t *c, uint64_t wanted, int64_t *count) noexcept nogil:
    cdef uint64_t index = c.head & c.mask
    c.peeked = 0
    count[0] = ring_ready(c, wanted)
    if count[0] <= 0:
        return NULL
    c.peeked = min(min(<uint64_t>count[0], wanted), c.capacity - index)
    count[0] = <int64_t>c.peeked
    return c.slots + index * c.slot_nbytes


# Give back the first `n` peeked slots (at most those peeked); the others will be peeked again.
cdef inline void ring_release(consumer_t *c, uint64_t n) noexcept nogil:
    c.head += min(n, c.peeked)
    c.peeked = 0
    # SYNC drained (meets: ring_free). Our reads must be over before the count that lets the producer overwrite.
    store_release_u64(&c.own.head, c.head)


# Copy out as many of `n` slots as are filled; return their number, or RING_CORRUPT. One store announces all.
cdef inline int64_t ring_try_pop(consumer_t *c, void *destination, uint64_t n) noexcept nogil:
    cdef uint64_t index = c.head & c.mask, first
    cdef int64_t ready = ring_ready(c, n)
    if ready <= 0:
        return ready
    n = min(n, <uint64_t>ready)
    first = min(n, c.capacity - index)
    memcpy(destination, c.slots + index * c.slot_nbytes, first * c.slot_nbytes)
    if n > first:
        memcpy(<char *>destination + first * c.slot_nbytes, c.slots, (n - first) * c.slot_nbytes)
    c.peeked = n
    ring_release(c, n)
    return <int64_t>n


# Whether the producer closed its end in good order and all that it committed is released: the end of the stream.
cdef inline bint ring_is_finished(consumer_t *c) noexcept nogil:
    # SYNC closed (meets: ring_leave). If `closed` is loaded as set, the load of tail returns the last one:
    # the flag first, the counter second: a ring seen empty before the flag may have been filled since.
    return load_acquire_u32(&c.ring.producer.closed) == ROLE_CLOSED and ring_ready(c, c.capacity) == 0
