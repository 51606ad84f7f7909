"""The two ends of a ring as Python objects: they check arguments, take pointers and call ``ring/spsc.pxd``.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset, strerror
from posix.stdlib cimport posix_memalign

from shmring._c.layout cimport SHMRING_FALSE_SHARING, shmring_ring, shmring_ring_role
from shmring.arrays.lease cimport Span, borrow, borrowed_t, end_borrow, make_span
from shmring.ring.spsc cimport (RING_CORRUPT, RING_FOREIGN, RING_TAKEN, consumer_t, producer_t, ring_abort,
                                ring_attach_consumer, ring_attach_producer, ring_commit, ring_end_state, ring_free,
                                ring_in, ring_is_finished, ring_leave, ring_peek, ring_ready, ring_release,
                                ring_reserve, ring_try_pop, ring_try_push)
from shmring.sync.liveness cimport fork_generation

from shmring.errors import ClosedError, RoleTakenError, SegmentError
from shmring.ring.spsc import END_STATES


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
    cdef void *private             # the producer_t or consumer_t
    cdef uint64_t capacity
    cdef size_t nbytes             # of a slot

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
        PyObject_GetBuffer(buffer, &self.memory, PyBUF_WRITABLE)
        self.has_memory = True
        return ring_in(&self.memory, nbytes)

    cdef int check_attached(self, int code, str role) except -1:
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
        """End the view. Raises if an array or a slice of it is still alive, as mmap does."""
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
            ring_leave(self.own, in_good_order)
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
        free(self.private)

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} belongs to one process; attach another to the same buffer instead")

    def __repr__(self):
        return f"<shmring.ring.{type(self).__name__} of {self.capacity} slots of {self.nbytes} bytes>"

    @property
    def nslots(self):
        """int : Capacity of the ring in slots."""
        return self.capacity

    @property
    def slot_nbytes(self):
        """int : Size of each slot in bytes."""
        return self.nbytes

    @property
    def closed(self):
        """bool : Whether this end was closed here."""
        return not self.is_open

    @property
    def peer(self):
        """{"absent", "here", "closed", "lost"} : How the other end stands; ``lost``: died, or left without closing."""
        self.require_open()
        return END_STATES[ring_end_state(self.other)]


# The private state of an end, alone on its lines: two ends in one process are used by two threads.
cdef void *isolated(size_t nbytes) except NULL:
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
        The ring has or had a producer.
    """

    cdef producer_t *p

    def __cinit__(self, buffer):
        cdef size_t nbytes
        cdef char *base = self.map_ring(buffer, &nbytes)
        cdef shmring_ring *ring = <shmring_ring *>base
        self.private = self.p = <producer_t *>isolated(sizeof(producer_t))
        self.own, self.other = &ring.producer, &ring.consumer
        self.check_attached(ring_attach_producer(self.p, base, nbytes), "producer")
        self.capacity, self.nbytes = self.p.capacity, self.p.slot_nbytes

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
        The ring has or had a consumer.
    """

    cdef consumer_t *c

    def __cinit__(self, buffer):
        cdef size_t nbytes
        cdef char *base = self.map_ring(buffer, &nbytes)
        cdef shmring_ring *ring = <shmring_ring *>base
        self.private = self.c = <consumer_t *>isolated(sizeof(consumer_t))
        self.own, self.other = &ring.consumer, &ring.producer
        self.check_attached(ring_attach_consumer(self.c, base, nbytes), "consumer")
        self.capacity, self.nbytes = self.c.capacity, self.c.slot_nbytes

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
