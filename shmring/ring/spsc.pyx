"""The ring: a lock-free queue of equal slots between one producer and one consumer.

Over any writable memory both can see: a mapping between processes, a ``bytearray`` between threads. Nothing here
blocks; an answer is "done", "full" or "empty". Channels and point-to-point messages compose waiting on top.

The C-level functions, all ``nogil``, are in ``ring/spsc.pxd`` for ``cimport``; the classes here check arguments, take
pointers and call them.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset, strerror
from posix.stdlib cimport posix_memalign

from shmring._c.atomics cimport (
    compare_swap_u32,
    load_acquire_u32,
    load_acquire_u64,
    load_relaxed_u64,
    store_relaxed_u64,
    store_release_u32,
    store_release_u64,
)
from shmring._c.layout cimport SHMRING_FALSE_SHARING, SHMRING_RING_MAGIC, sem_t, shmring_ring, shmring_ring_role
from shmring.arrays.lease cimport Span, borrow, borrowed_t, end_borrow, make_span
from shmring.sync.liveness cimport ALIVE, DEAD, drop_liveness, fork_generation, hold_liveness, life_state

from shmring.errors import ClosedError, RoleTakenError, SegmentError

cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)


# ---- Making, attaching, closing ----

cdef size_t ring_control_nbytes() noexcept nogil:
    return sizeof(shmring_ring)


cdef void ring_format(void *base, uint64_t nslots, uint64_t slot_nbytes, uint64_t start,
                      bint drops=False, uint64_t slots_at=sizeof(shmring_ring)) noexcept nogil:
    cdef shmring_ring *ring = <shmring_ring *>base
    memset(ring, 0, sizeof(shmring_ring))
    ring.nslots = nslots
    ring.slot_nbytes = slot_nbytes
    ring.drops = drops
    ring.slots_at = slots_at
    store_relaxed_u64(&ring.tail, start)
    store_relaxed_u64(&ring.head, start)
    sem_init(&ring.producer.waiter.wake, 1, 0)
    sem_init(&ring.consumer.waiter.wake, 1, 0)
    # SYNC formatted (meets: attach). Geometry and counters before the word that says there is a ring.
    store_release_u64(&ring.magic, SHMRING_RING_MAGIC)


cdef shmring_ring *attach(void *base, size_t nbytes, uint64_t *nslots, size_t *slot_nbytes,
                          char **slots) noexcept nogil:
    """The ring at ``base``, if there is one and all of it lies within ``nbytes``; else NULL."""
    cdef shmring_ring *ring = <shmring_ring *>base
    if nbytes < sizeof(shmring_ring) or <uintptr_t>base % SHMRING_FALSE_SHARING != 0:
        return NULL
    # SYNC formatted (meets: ring_format). Geometry is read once, here: what was checked is what is used.
    if load_acquire_u64(&ring.magic) != SHMRING_RING_MAGIC:
        return NULL
    nslots[0] = load_relaxed_u64(&ring.nslots)
    slot_nbytes[0] = load_relaxed_u64(&ring.slot_nbytes)
    cdef uint64_t slots_at = load_relaxed_u64(&ring.slots_at)
    if nslots[0] == 0 or nslots[0] & (nslots[0] - 1) or slot_nbytes[0] == 0:
        return NULL
    if not sizeof(shmring_ring) <= slots_at <= nbytes or slot_nbytes[0] > (nbytes - slots_at) // nslots[0]:
        return NULL
    slots[0] = <char *>base + slots_at
    return ring


cdef int take(shmring_ring_role *role, bint again) noexcept nogil:
    cdef bint is_first = compare_swap_u32(&role.taken, 0, 1)
    if not is_first and not (again and ring_end_state(role) != END_HERE):
        return RING_TAKEN
    cdef int error = hold_liveness(&role.life)
    if error and is_first:
        store_release_u32(&role.taken, 0)
    elif not error:
        store_release_u32(&role.closed, 0)
    return error


cdef uint64_t position(shmring_ring *ring, uint64_t head) noexcept nogil:
    return head & ~(<uint64_t>1 << 63) if ring.drops else head


cdef int check_counters(shmring_ring_role *role, bint possible) noexcept nogil:
    if possible:
        return 0
    leave(role, False)
    return RING_CORRUPT


cdef void leave(shmring_ring_role *role, bint in_good_order) noexcept nogil:
    # SYNC closed (meets: ring_is_finished, closed_state). The last count before the word that says it is the last.
    store_release_u32(&role.closed, 1 if in_good_order else 2)
    drop_liveness(&role.life)


cdef int ring_attach_producer(producer_t *p, void *base, size_t nbytes, bint again=False,
                              bint held=True) noexcept nogil:
    cdef shmring_ring *ring = attach(base, nbytes, &p.capacity, &p.slot_nbytes, &p.slots)
    if ring == NULL:
        return RING_FOREIGN
    cdef int error = take(&ring.producer, again) if held else 0
    if error:
        return error
    p.ring = ring
    p.mask = p.capacity - 1
    ring_resume_producer(p)
    return check_counters(&ring.producer, p.tail - p.cached_head <= p.capacity)


cdef int ring_attach_consumer(consumer_t *c, void *base, size_t nbytes, bint again=False,
                              bint held=True) noexcept nogil:
    cdef shmring_ring *ring = attach(base, nbytes, &c.capacity, &c.slot_nbytes, &c.slots)
    if ring == NULL:
        return RING_FOREIGN
    cdef int error = take(&ring.consumer, again) if held else 0
    if error:
        return error
    c.ring = ring
    c.mask = c.capacity - 1
    ring_resume_consumer(c)
    return check_counters(&ring.consumer, c.cached_tail - c.head <= c.capacity)


cdef void ring_resume_producer(producer_t *p) noexcept nogil:
    p.reserved = 0
    p.tail = load_relaxed_u64(&p.ring.tail)
    # SYNC drained (meets: ring_release).
    p.cached_head = position(p.ring, load_acquire_u64(&p.ring.head))


cdef void ring_resume_consumer(consumer_t *c) noexcept nogil:
    c.peeked = 0
    c.head = position(c.ring, load_relaxed_u64(&c.ring.head))
    # SYNC filled (meets: ring_commit).
    c.cached_tail = load_acquire_u64(&c.ring.tail)


cdef void ring_close_producer(producer_t *p, bint in_good_order) noexcept nogil:
    leave(&p.ring.producer, in_good_order)


cdef void ring_close_consumer(consumer_t *c, bint in_good_order) noexcept nogil:
    leave(&c.ring.consumer, in_good_order)


cdef int closed_state(shmring_ring_role *role, int otherwise) noexcept nogil:
    # SYNC closed (meets: leave).
    cdef uint32_t closed = load_acquire_u32(&role.closed)
    return otherwise if closed == 0 else END_CLOSED if closed == 1 else END_LOST


cdef int ring_end_state(shmring_ring_role *role) noexcept nogil:
    cdef int state = closed_state(role, END_HERE)
    if state != END_HERE:
        return state
    if not load_acquire_u32(&role.taken):
        return END_ABSENT
    cdef int life = life_state(&role.life)
    if life == ALIVE:
        return END_HERE
    # It may have closed, and then died or let go, since the first look. Dropped but not closed: it is just arriving.
    return closed_state(role, END_LOST if life == DEAD else END_ABSENT)


# ---- The Python face ----

cdef uintptr_t aligned(const void *address) noexcept nogil:
    return (<uintptr_t>address + SHMRING_FALSE_SHARING - 1) & ~<uintptr_t>(SHMRING_FALSE_SHARING - 1)


def ring_nbytes(nslots, slot_nbytes):
    """Bytes of a buffer that surely has room for a ring, alignment to 128 bytes included.

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


cdef object at_address(Py_buffer *memory, size_t *nbytes, char **base):
    """Where in ``memory`` its ring begins, and how many bytes there are from there on."""
    base[0] = <char *>aligned(memory.buf)
    cdef size_t skipped = base[0] - <char *>memory.buf
    nbytes[0] = memory.len - skipped if skipped <= <size_t>memory.len else 0


def format_ring(buffer, nslots, slot_nbytes, *, uint64_t start=0, bint drops=False):
    """Make an empty ring in a buffer, before anybody attaches to it.

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
        Where both counters start; no matter, but for tests of their wrap-around.
    drops : bool
        For channels whose producer may give up the oldest slots (``shmring/ring/overwrite.pyx``).

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
    needed = ring_nbytes(nslots, slot_nbytes) - SHMRING_FALSE_SHARING
    PyObject_GetBuffer(buffer, &memory, PyBUF_WRITABLE)
    try:
        at_address(&memory, &nbytes, &base)
        if nbytes < needed:
            raise ValueError(f"{nslots} slots of {slot_nbytes} bytes need {needed} bytes, there are {nbytes}")
        refuse_if_in_use(<shmring_ring *>base)
        ring_format(base, nslots, slot_nbytes, start, drops)
    finally:
        PyBuffer_Release(&memory)


cdef object refuse_if_in_use(shmring_ring *ring):
    if load_acquire_u64(&ring.magic) != SHMRING_RING_MAGIC:
        return
    if ring_end_state(&ring.producer) == END_HERE:
        raise RoleTakenError(f"process {ring.producer.life.pid} is this ring's producer", ring.producer.life.pid)
    if ring_end_state(&ring.consumer) == END_HERE:
        raise RoleTakenError(f"process {ring.consumer.life.pid} is this ring's consumer", ring.consumer.life.pid)


# no_gc_clear, here and in the two below: the collector would drop `memory.obj`, and with it the mapping, before
# __dealloc__ can leave the ring. Cycles (end, span, view, while something is lent) are broken at the span.
@cython.no_gc_clear
cdef class End:
    """What both ends of a ring have in common; made by `Producer` and `Consumer`."""

    cdef Py_buffer memory
    cdef bint has_memory
    cdef bint is_open
    cdef uint32_t generation
    cdef Span span
    cdef object view
    cdef shmring_ring_role *own
    cdef shmring_ring_role *other

    cdef inline int require_open(self) except -1:
        if not self.is_open:
            raise ClosedError(f"this {type(self).__name__} is closed")
        if self.generation != fork_generation():
            raise ClosedError(f"this {type(self).__name__} belongs to the process this one was forked from")
        return 0

    cdef inline int require_idle(self) except -1:
        self.require_open()
        if self.span is not None:
            raise ValueError("slots are still reserved or peeked: commit, abort or release them first")
        return 0

    cdef char *map_ring(self, buffer, size_t *nbytes) except NULL:
        cdef char *base
        PyObject_GetBuffer(buffer, &self.memory, PyBUF_WRITABLE)
        self.has_memory = True
        at_address(&self.memory, nbytes, &base)
        return base

    cdef int check_attached(self, int code, shmring_ring *ring, str role) except -1:
        if code == 0:
            self.generation = fork_generation()
            self.is_open = True
            return 0
        if code == RING_FOREIGN:
            raise SegmentError("there is no ring in this buffer, or the buffer ends before it")
        if code == RING_CORRUPT:
            raise SegmentError("the counters of this ring are impossible")
        if code == RING_TAKEN:
            pid = self.own.life.pid
            state = ("just arriving", "alive", "closed", "dead")[ring_end_state(self.own)]
            raise RoleTakenError(f"process {pid} took the {role}'s end of this ring (now {state})", pid)
        raise OSError(code, f"cannot hold a liveness: {strerror(code).decode()}")

    cdef object lend(self, const char *address, uint64_t nbytes, bint is_readonly):
        self.span = make_span(self, <char *>address, nbytes, is_readonly)
        self.view = memoryview(self.span)
        return self.view

    cdef int take_back(self) except -1:
        """End the view. Whoever still looks at the slots through an array or a slice of it is an error, as in mmap."""
        self.require_open()
        if self.span is None:
            raise ValueError("nothing is reserved or peeked")
        self.view.release()
        if self.span.exports:
            raise BufferError("slices or arrays of this view are still alive: delete them and call again")
        self.span = self.view = None
        return 0

    cdef void leave_ring(self, bint in_good_order) noexcept:
        if self.is_open and self.generation == fork_generation():
            leave(self.own, in_good_order)
        self.is_open = False
        if self.has_memory:
            PyBuffer_Release(&self.memory)
            self.has_memory = False

    def close(self):
        """Close this end in good order: nothing more will come, or be read. Idempotent.

        The other side finds out by `peer` and, at the end of the stream, `Consumer.finished`. An end that goes without
        (garbage collection, the end of the interpreter, a ``with`` block left by an exception, death) is ``"lost"`` to
        the other side, never mistaken for an orderly end. Raises ``BufferError`` while views of reserved or peeked
        slots are alive.
        """
        self.close_end(True)

    cdef int close_end(self, bint in_good_order) except -1:
        if self.is_open and self.span is not None and self.generation == fork_generation():
            self.take_back()
        self.leave_ring(in_good_order)
        return 0

    def __enter__(self):
        self.require_open()
        return self

    def __exit__(self, exception_type, exception, traceback):
        self.close_end(exception_type is None)

    def __dealloc__(self):
        self.leave_ring(False)

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} belongs to one process; attach another to the same buffer instead")

    @property
    def closed(self):
        """bool : Whether this end was closed here."""
        return not self.is_open

    @property
    def peer(self):
        """{"absent", "here", "closed", "lost"} : How the other end stands; ``lost``: died, or left without closing."""
        self.require_open()
        return ("absent", "here", "closed", "lost")[ring_end_state(self.other)]


# The private state of an end, alone on its lines: two ends in one process are used by two threads.
cdef void *lonely(size_t nbytes) except NULL:
    cdef void *address = NULL
    nbytes = (nbytes + SHMRING_FALSE_SHARING - 1) // SHMRING_FALSE_SHARING * SHMRING_FALSE_SHARING
    if posix_memalign(&address, SHMRING_FALSE_SHARING, nbytes) != 0:
        raise MemoryError
    memset(address, 0, nbytes)
    return address


cdef uint64_t slots_in(size_t nbytes, size_t slot_nbytes) except? 0:
    if nbytes % slot_nbytes != 0:
        raise ValueError(f"{nbytes} bytes are not a whole number of slots of {slot_nbytes} bytes")
    return nbytes // slot_nbytes


cdef uint64_t at_least_one(count) except 0:
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    return count


cdef uint64_t not_negative(count) except? 0:
    if count < 0:
        raise ValueError(f"count must not be negative, is {count}")
    return count


cdef object corrupt(str side):
    raise SegmentError(f"the {side}'s counter of this ring is impossible; nothing was read or written")


@cython.final
@cython.no_gc_clear
cdef class Producer(End):
    """The writing end of a ring; each ring has one, once.

    Belongs to the process that made it, and to one thread at a time. Nothing blocks.

    Parameters
    ----------
    buffer : writable buffer
        Holds a ring made by `format_ring`. It cannot be closed or resized before this end is.

    Raises
    ------
    SegmentError
        There is no ring, or its counters are impossible.
    RoleTakenError
        Somebody is or was this ring's producer.
    """

    cdef producer_t *p

    def __cinit__(self, buffer):
        cdef size_t nbytes
        cdef char *base = self.map_ring(buffer, &nbytes)
        cdef shmring_ring *ring = <shmring_ring *>base
        self.p = <producer_t *>lonely(sizeof(producer_t))
        self.own, self.other = &ring.producer, &ring.consumer
        self.check_attached(ring_attach_producer(self.p, base, nbytes), ring, "producer")

    def __dealloc__(self):
        free(self.p)

    def __repr__(self):
        return f"<shmring.ring.spsc.Producer of {self.nslots} slots of {self.slot_nbytes} bytes>"

    @property
    def nslots(self):
        """int : Capacity of the ring in slots."""
        return self.p.capacity

    @property
    def slot_nbytes(self):
        """int : Size of each slot in bytes."""
        return self.p.slot_nbytes

    @property
    def tail(self):
        """int : Slots ever committed, modulo 2**64."""
        return self.p.tail

    @property
    def free_count(self):
        """int : Slots that are free now; there may be more a moment later, never fewer."""
        self.require_open()
        cdef int64_t count = ring_free(self.p, self.p.capacity)
        return count if count >= 0 else corrupt("consumer")

    def try_push(self, data):
        """Copy ``data``, exactly one slot's worth of bytes, into the ring.

        Returns
        -------
        bool
            False if the ring is full; nothing has happened then.
        """
        cdef borrowed_t b
        cdef int64_t count
        self.require_idle()
        borrow(data, &b, False)
        try:
            if b.nbytes != self.p.slot_nbytes:
                raise ValueError(f"a slot has {self.p.slot_nbytes} bytes, not {b.nbytes}")
            count = ring_try_push(self.p, b.address, 1)
        finally:
            end_borrow(&b)
        return count == 1 if count >= 0 else corrupt("consumer")

    def try_push_many(self, data):
        """Copy as many whole slots of ``data`` into the ring as there is room for, from the first one on.

        Parameters
        ----------
        data : contiguous buffer or array
            A whole number of slots.

        Returns
        -------
        int
            How many slots were pushed.
        """
        cdef borrowed_t b
        cdef int64_t count
        self.require_idle()
        borrow(data, &b, False)
        try:
            count = ring_try_push(self.p, b.address, slots_in(b.nbytes, self.p.slot_nbytes))
        finally:
            end_borrow(&b)
        return count if count >= 0 else corrupt("consumer")

    def reserve(self, count=1):
        """Lend up to ``count`` free slots to write in place.

        Returns
        -------
        memoryview or None
            Writable bytes of one or more contiguous slots (fewer than asked for when nearly full, or where the ring
            wraps), valid until `commit` or `abort`; None if the ring is full. What they hold before is left over.

        Raises
        ------
        ValueError
            The last reservation is still open.
        """
        cdef int64_t found
        self.require_idle()
        cdef char *address = ring_reserve(self.p, at_least_one(count), &found)
        if found < 0:
            corrupt("consumer")
        return None if address == NULL else self.lend(address, found * self.p.slot_nbytes, False)

    def commit(self, count=None):
        """Hand over the first ``count`` reserved slots (all if None), give up the others, and end the view.

        Raises
        ------
        BufferError
            An array or slice of the view is still alive. Nothing was handed over; delete it and call again.
        ValueError
            Nothing is reserved, or fewer slots than ``count``.
        """
        cdef uint64_t n = self.p.reserved if count is None else not_negative(count)
        if n > self.p.reserved:
            raise ValueError(f"{count} slots cannot be committed, {self.p.reserved} are reserved")
        self.take_back()
        ring_commit(self.p, n)

    def abort(self):
        """Give up the reserved slots and end the view; the consumer never knows. Raises as `commit` does."""
        self.take_back()
        ring_abort(self.p)


@cython.final
@cython.no_gc_clear
cdef class Consumer(End):
    """The reading end of a ring; each ring has one, once.

    Belongs to the process that made it, and to one thread at a time. Nothing blocks.

    Parameters
    ----------
    buffer : writable buffer
        Holds a ring made by `format_ring`. It cannot be closed or resized before this end is.

    Raises
    ------
    SegmentError
        There is no ring, or its counters are impossible.
    RoleTakenError
        Somebody is or was this ring's consumer.
    """

    cdef consumer_t *c

    def __cinit__(self, buffer):
        cdef size_t nbytes
        cdef char *base = self.map_ring(buffer, &nbytes)
        cdef shmring_ring *ring = <shmring_ring *>base
        self.c = <consumer_t *>lonely(sizeof(consumer_t))
        self.own, self.other = &ring.consumer, &ring.producer
        self.check_attached(ring_attach_consumer(self.c, base, nbytes), ring, "consumer")

    def __dealloc__(self):
        free(self.c)

    def __repr__(self):
        return f"<shmring.ring.spsc.Consumer of {self.nslots} slots of {self.slot_nbytes} bytes>"

    @property
    def nslots(self):
        """int : Capacity of the ring in slots."""
        return self.c.capacity

    @property
    def slot_nbytes(self):
        """int : Size of each slot in bytes."""
        return self.c.slot_nbytes

    @property
    def head(self):
        """int : Slots ever released, modulo 2**64."""
        return self.c.head

    @property
    def ready_count(self):
        """int : Slots that can be read now; there may be more a moment later, never fewer."""
        self.require_open()
        cdef int64_t count = ring_ready(self.c, self.c.capacity)
        return count if count >= 0 else corrupt("producer")

    @property
    def finished(self):
        """bool : Whether the producer closed its end in good order and everything it committed was released."""
        self.require_open()
        return ring_is_finished(self.c)

    def try_pop(self, out):
        """Copy the next slot into ``out``, a writable buffer of exactly one slot's size.

        Returns
        -------
        bool
            False if the ring is empty; nothing has happened then.
        """
        cdef borrowed_t b
        cdef int64_t count
        self.require_idle()
        borrow(out, &b, True)
        try:
            if b.nbytes != self.c.slot_nbytes:
                raise ValueError(f"a slot has {self.c.slot_nbytes} bytes, not {b.nbytes}")
            count = ring_try_pop(self.c, b.address, 1)
        finally:
            end_borrow(&b)
        return count == 1 if count >= 0 else corrupt("producer")

    def try_pop_many(self, out):
        """Copy as many slots as are ready into ``out``, from its beginning on.

        Parameters
        ----------
        out : writable contiguous buffer or array
            A whole number of slots.

        Returns
        -------
        int
            How many slots were popped.
        """
        cdef borrowed_t b
        cdef int64_t count
        self.require_idle()
        borrow(out, &b, True)
        try:
            count = ring_try_pop(self.c, b.address, slots_in(b.nbytes, self.c.slot_nbytes))
        finally:
            end_borrow(&b)
        return count if count >= 0 else corrupt("producer")

    def peek(self, count=1):
        """Lend up to ``count`` filled slots to read in place.

        Returns
        -------
        memoryview or None
            Read-only bytes of one or more contiguous slots (fewer than asked for when nearly empty, or where the ring
            wraps), valid until `release`; None if the ring is empty.

        Raises
        ------
        ValueError
            The last peek is still open.
        """
        cdef int64_t found
        self.require_idle()
        cdef const char *address = ring_peek(self.c, at_least_one(count), &found)
        if found < 0:
            corrupt("producer")
        return None if address == NULL else self.lend(address, found * self.c.slot_nbytes, True)

    def release(self, count=None):
        """Give back the first ``count`` peeked slots (all if None) and end the view; the others come again.

        Raises
        ------
        BufferError
            An array or slice of the view is still alive. Nothing was given back; delete it and call again.
        ValueError
            Nothing is peeked, or fewer slots than ``count``.
        """
        cdef uint64_t n = self.c.peeked if count is None else not_negative(count)
        if n > self.c.peeked:
            raise ValueError(f"{count} slots cannot be released, {self.c.peeked} are peeked")
        self.take_back()
        ring_release(self.c, n)
