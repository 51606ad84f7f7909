"""The ring: a lock-free queue of equal slots between one producer and one consumer, or several that read all of it.

It lies in any writable memory that both map: shared memory between processes, a ``bytearray`` between threads. Nothing
here blocks: a call succeeds, or finds the ring full or empty. Channels add waiting.

The C-level functions, all ``nogil``, are in ``core/ring/spsc.pxd`` for ``cimport``; ``core/ring/end.pyx`` has the
Python classes of the two ends.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from shmring.core.c.atomics cimport (compare_swap_u32, load_acquire_u32, load_acquire_u64, load_relaxed_u64,
                                 store_relaxed_u64, store_release_u32, store_release_u64)
from shmring.core.c.layout cimport (SHMRING_FALSE_SHARING, SHMRING_RING_MAGIC, SHMRING_RING_MOST_HEADS, shmring_ring,
                                shmring_ring_head, shmring_ring_role)
from shmring.core.sync.backoff cimport sem_init
from shmring.core.sync.liveness cimport ALIVE, DEAD, await_last_stores, drop_liveness, hold_liveness, liveness_state

from shmring.errors import RoleTakenError

END_STATES = ("absent", "here", "closed", "lost")      # by END_ABSENT ...
CONTROL_NBYTES = sizeof(shmring_ring)                  # before the slots of a ring with one consumer
HEAD_NBYTES = sizeof(shmring_ring_head)                # and of each further one


# ---- Making, attaching, closing ----

cdef size_t ring_control_nbytes(uint64_t nheads=1) noexcept nogil:
    return sizeof(shmring_ring) + (nheads - 1) * sizeof(shmring_ring_head)


cdef void ring_format(void *base, uint64_t nslots, uint64_t slot_nbytes, uint64_t start,
                      uint64_t nheads=1) noexcept nogil:
    cdef shmring_ring *ring = <shmring_ring *>base
    cdef uint64_t i
    memset(ring, 0, ring_control_nbytes(nheads))
    ring.nslots = nslots
    ring.slot_nbytes = slot_nbytes
    ring.nheads = nheads
    store_relaxed_u64(&ring.tail, start)
    ring.laps.next_lap = start
    sem_init(&ring.producer.waiter.wake, 1, 0)
    for i in range(nheads):
        store_relaxed_u64(&ring.heads[i].head, start)
        sem_init(&ring.heads[i].consumer.waiter.wake, 1, 0)
    # SYNC formatted (meets: attach). Geometry and counters before the magic word of a ring.
    store_release_u64(&ring.magic, SHMRING_RING_MAGIC)


cdef shmring_ring *attach(void *base, size_t nbytes, uint64_t *nslots, size_t *slot_nbytes, uint64_t *nheads,
                          char **slots) noexcept nogil:
    """The ring at ``base``, if there is one and all of it lies within ``nbytes``; else NULL. ``slot_nbytes``, if not 0,
    is what its slots must have."""
    cdef shmring_ring *ring = <shmring_ring *>base
    cdef size_t control, wanted = slot_nbytes[0]
    if nbytes < sizeof(shmring_ring) or <uintptr_t>base % SHMRING_FALSE_SHARING != 0:
        return NULL
    # SYNC formatted (meets: ring_format). Geometry is read once, here: what was checked is what is used.
    if load_acquire_u64(&ring.magic) != SHMRING_RING_MAGIC:
        return NULL
    nslots[0] = load_relaxed_u64(&ring.nslots)
    slot_nbytes[0] = load_relaxed_u64(&ring.slot_nbytes)
    nheads[0] = load_relaxed_u64(&ring.nheads)
    if nslots[0] == 0 or nslots[0] & (nslots[0] - 1) or slot_nbytes[0] == 0:
        return NULL
    if wanted and slot_nbytes[0] != wanted:
        return NULL
    if not 1 <= nheads[0] <= SHMRING_RING_MOST_HEADS:
        return NULL
    control = ring_control_nbytes(nheads[0])
    if control > nbytes or slot_nbytes[0] > (nbytes - control) // nslots[0]:
        return NULL
    slots[0] = <char *>base + control
    return ring


cdef int take(shmring_ring_role *role, bint again) noexcept nogil:
    cdef bint is_first = compare_swap_u32(&role.taken, 0, 1)
    if not is_first and not (again and ring_end_state(role) != END_HERE):
        return RING_TAKEN
    if not is_first and liveness_state(&role.liveness) == DEAD:
        await_last_stores()
    cdef int error = hold_liveness(&role.liveness)
    if error and is_first:
        store_release_u32(&role.taken, 0)
    elif not error and not is_first:       # else it is open, or the producer has disconnected this consumer
        store_release_u32(&role.closed, 0)
    return error


cdef int check_counters(shmring_ring_role *role, bint possible) noexcept nogil:
    if possible:
        return 0
    ring_leave(role, False)
    return RING_CORRUPT


cdef void ring_leave(shmring_ring_role *role, bint in_good_order) noexcept nogil:
    # SYNC closed (meets: ring_is_finished, closed_state). The last count before the flag that makes it the last.
    store_release_u32(&role.closed, ROLE_CLOSED if in_good_order else ROLE_LEFT)
    drop_liveness(&role.liveness)


cdef int ring_attach_producer(producer_t *p, void *base, size_t nbytes, bint again=False, bint held=True,
                              size_t slot_nbytes=0) noexcept nogil:
    cdef uint64_t nheads
    p.slot_nbytes = slot_nbytes
    cdef shmring_ring *ring = attach(base, nbytes, &p.capacity, &p.slot_nbytes, &nheads, &p.slots)
    if ring == NULL:
        return RING_FOREIGN
    cdef int error = take(&ring.producer, again) if held else 0
    if error:
        return error
    p.ring = ring
    p.mask = p.capacity - 1
    p.nheads = <uint32_t>nheads
    ring_resume_producer(p)
    return check_counters(&ring.producer, p.tail - p.cached_head <= p.capacity)


cdef int ring_attach_consumer(consumer_t *c, void *base, size_t nbytes, bint again=False, bint held=True,
                              size_t slot_nbytes=0, uint64_t number=0) noexcept nogil:
    cdef uint64_t nheads
    cdef shmring_ring_role *role
    c.slot_nbytes = slot_nbytes
    cdef shmring_ring *ring = attach(base, nbytes, &c.capacity, &c.slot_nbytes, &nheads, &c.slots)
    if ring == NULL or number >= nheads:
        return RING_FOREIGN
    role = &ring.heads[number].consumer
    cdef int error = take(role, again) if held else 0
    if error:
        return error
    c.ring = ring
    c.own = &ring.heads[number]
    c.mask = c.capacity - 1
    ring_resume_consumer(c)
    return check_counters(role, c.cached_tail - c.head <= c.capacity)


cdef void ring_resume_producer(producer_t *p) noexcept nogil:
    p.reserved = 0
    p.tail = load_relaxed_u64(&p.ring.tail)
    p.cached_head = p.tail - p.capacity        # no head is below it
    p.cached_head = ring_least_head(p)


cdef void ring_resume_consumer(consumer_t *c) noexcept nogil:
    c.peeked = 0
    c.head = load_relaxed_u64(&c.own.head)
    # SYNC filled (meets: ring_commit).
    c.cached_tail = load_acquire_u64(&c.ring.tail)
    if load_acquire_u32(&c.own.consumer.closed) == ROLE_DISCONNECTED:
        c.cached_tail = c.head                 # the slots behind it are the producer's


cdef uint64_t ring_least_head(producer_t *p) noexcept nogil:
    cdef uint64_t i, head, least = p.tail
    for i in range(p.nheads):
        # The head of a consumer that is alone stays: another process may take that end, and read on.
        if p.nheads > 1 and ring_is_gone(&p.ring.heads[i].consumer):
            continue
        # SYNC drained (meets: ring_release), as in ring_free.
        head = load_acquire_u64(&p.ring.heads[i].head)
        if p.tail - head > p.tail - p.cached_head:
            return p.cached_head - 1
        if p.tail - head > p.tail - least:
            least = head
    return least


cdef void ring_close_producer(producer_t *p, bint in_good_order) noexcept nogil:
    ring_leave(&p.ring.producer, in_good_order)


cdef void ring_close_consumer(consumer_t *c, bint in_good_order) noexcept nogil:
    ring_leave(&c.own.consumer, in_good_order)


cdef int closed_state(shmring_ring_role *role, int otherwise) noexcept nogil:
    # SYNC closed (meets: ring_leave).
    cdef uint32_t closed = load_acquire_u32(&role.closed)
    return otherwise if closed == 0 else END_CLOSED if closed == ROLE_CLOSED else END_LOST


cdef int ring_end_state(shmring_ring_role *role) noexcept nogil:
    cdef int state = closed_state(role, END_HERE)
    if state != END_HERE:
        return state
    if not load_acquire_u32(&role.taken):
        return END_ABSENT
    cdef int state_of_holder = liveness_state(&role.liveness)
    if state_of_holder == ALIVE:
        return END_HERE
    # The holder may have closed the end, and then died, since the first load. Dropped but not closed: it is attaching.
    return closed_state(role, END_LOST if state_of_holder == DEAD else END_ABSENT)


# ---- Making, from Python ----

cdef uintptr_t aligned(const void *address) noexcept nogil:
    return (<uintptr_t>address + SHMRING_FALSE_SHARING - 1) & ~<uintptr_t>(SHMRING_FALSE_SHARING - 1)


def ring_nbytes(nslots, slot_nbytes):
    """Bytes of a buffer with room for a ring with one consumer, alignment to 128 bytes included.

    Parameters
    ----------
    nslots : int
        A power of two.
    slot_nbytes : int
        Size of each slot, at least 1.
    """
    for name, value in (("nslots", nslots), ("slot_nbytes", slot_nbytes)):
        if not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if nslots < 1 or nslots & (nslots - 1):
        raise ValueError(f"nslots must be a power of two, not {nslots}")
    if slot_nbytes < 1:
        raise ValueError(f"slot_nbytes must be at least 1, not {slot_nbytes}")
    return sizeof(shmring_ring) + nslots * slot_nbytes + SHMRING_FALSE_SHARING


cdef char *ring_in(const Py_buffer *memory, size_t *nbytes) noexcept nogil:
    cdef char *base = <char *>aligned(memory.buf)
    cdef size_t skipped = base - <char *>memory.buf
    nbytes[0] = memory.len - skipped if skipped <= <size_t>memory.len else 0
    return base


def format_ring(buffer, nslots, slot_nbytes, *, start=0, nheads=1):
    """Make an empty ring in a buffer, before any process attaches to it.

    Parameters
    ----------
    buffer : writable buffer
        At least `ring_nbytes` long (less the alignment if it lies on a multiple of 128, as a mapping does). Its address
        modulo 128 must be the same in all processes.
    nslots : int
        A power of two.
    slot_nbytes : int
        Size of each slot.
    start : int
        The first value of both counters; only tests of their wrap-around set it.
    nheads : int
        The number of consumers, each of which reads every slot. Each beyond the first needs `HEAD_NBYTES` more bytes.

    Raises
    ------
    ValueError
        Impossible geometry, or the buffer is too small.
    RoleTakenError
        There is a ring already, and a living process holds one of its ends.
    """
    cdef Py_buffer memory
    cdef char *base
    cdef size_t nbytes
    if not 1 <= nheads <= SHMRING_RING_MOST_HEADS:
        raise ValueError(f"nheads={nheads}: must be from 1 to {SHMRING_RING_MOST_HEADS}")
    if not 0 <= start < 1 << 64:
        raise ValueError(f"start={start}: must be a number of 64 bits")
    needed = ring_nbytes(nslots, slot_nbytes) - SHMRING_FALSE_SHARING + (nheads - 1) * HEAD_NBYTES
    PyObject_GetBuffer(buffer, &memory, PyBUF_WRITABLE)
    try:
        base = ring_in(&memory, &nbytes)
        if nbytes < needed:
            raise ValueError(f"{nslots} slots of {slot_nbytes} bytes need {needed} bytes, there are {nbytes}")
        refuse_if_in_use(<shmring_ring *>base, nbytes)
        ring_format(base, nslots, slot_nbytes, start, nheads)
    finally:
        PyBuffer_Release(&memory)


cdef object refuse_if_in_use(shmring_ring *ring, size_t nbytes):
    cdef uint64_t i
    if load_acquire_u64(&ring.magic) != SHMRING_RING_MAGIC:
        return
    if ring_end_state(&ring.producer) == END_HERE:
        pid = ring.producer.liveness.pid
        raise RoleTakenError(f"process {pid} is this ring's producer", pid)
    for i in range(min(ring.nheads, <uint64_t>SHMRING_RING_MOST_HEADS)):
        if ring_control_nbytes(i + 1) > nbytes:
            break
        if ring_end_state(&ring.heads[i].consumer) == END_HERE:
            pid = ring.heads[i].consumer.liveness.pid
            raise RoleTakenError(f"process {pid} is this ring's consumer", pid)
