"""The two ends of a ring as Python objects: they check arguments, take pointers and call ``ring/spsc.pxd``."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from shmring.base.timeouts cimport checked_count
from shmring.arrays.lease cimport borrow, borrowed_t, end_borrow
from shmring.ring.end cimport End, checked, require_idle, require_open, slots_in
from shmring.ring.spsc cimport (consumer_t, producer_t, ring_abort, ring_commit, ring_free, ring_is_finished, ring_peek,
                                ring_ready, ring_release, ring_reserve, ring_try_pop, ring_try_push)


@cython.final
@cython.no_gc
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
        self.attach(buffer, True)
        self.p = <producer_t *>self.private
        self.capacity, self.nbytes = self.p.capacity, self.p.slot_nbytes

    @property
    @cython.critical_section
    def tail(self):
        """int : Slots ever committed, modulo 2**64."""
        return self.p.tail

    @property
    @cython.critical_section
    def free_count(self):
        """int : Slots that are free now; there may be more a moment later, never fewer."""
        require_open(self)
        return checked(self, ring_free(self.p, self.p.capacity))

    @cython.critical_section
    def try_push(self, data):
        """Copy ``data``, exactly one slot's worth of bytes, into the ring.

        Returns
        -------
        bool
            False if the ring is full; nothing has happened then.
        """
        return self.push(data, True) == 1

    @cython.critical_section
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
        return self.push(data, False)

    cdef inline int64_t push(self, data, bint is_one) except -1:
        cdef borrowed_t b
        cdef int64_t count
        borrow(data, &b, False)
        try:
            require_idle(self)      # now: exporting memory may have run Python code
            count = ring_try_push(self.p, b.address, slots_in(self, &b, is_one))
        finally:
            end_borrow(&b)
        return checked(self, count)

    @cython.critical_section
    def reserve(self, count=1):
        """Lend up to ``count`` free slots to write in place.

        Returns
        -------
        memoryview or None
            Writable bytes of one or more contiguous slots (fewer than asked for when nearly full, or where the ring
            wraps), valid until `commit` or `abort`; None if the ring is full. Their content is undefined.

        Raises
        ------
        ValueError
            The last reservation is still open.
        """
        cdef int64_t found
        cdef uint64_t most = checked_count(count, self.capacity)
        require_idle(self)
        cdef char *address = ring_reserve(self.p, most, &found)
        checked(self, found)
        return None if address == NULL else self.lend(address, found * self.p.slot_nbytes, False)

    @cython.critical_section
    def commit(self, count=None):
        """Hand over the first ``count`` reserved slots (all if None), give up the others, and end the view.

        Raises
        ------
        BufferError
            An array or slice of the view is still alive. Nothing was handed over; delete it and call again.
        ValueError
            Nothing is reserved, or fewer slots than ``count``.
        """
        ring_commit(self.p, self.taken(count, &self.p.reserved))

    @cython.critical_section
    def abort(self):
        """Give up the reserved slots and end the view; the consumer sees nothing of them. Raises as `commit` does."""
        self.take_back()
        ring_abort(self.p)


@cython.final
@cython.no_gc
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
        self.attach(buffer, False)
        self.c = <consumer_t *>self.private
        self.capacity, self.nbytes = self.c.capacity, self.c.slot_nbytes

    @property
    @cython.critical_section
    def head(self):
        """int : Slots ever released, modulo 2**64."""
        return self.c.head

    @property
    @cython.critical_section
    def ready_count(self):
        """int : Slots that can be read now; there may be more a moment later, never fewer."""
        require_open(self)
        return checked(self, ring_ready(self.c, self.c.capacity))

    @property
    @cython.critical_section
    def finished(self):
        """bool : Whether the producer closed its end in good order and everything it committed was released."""
        require_open(self)
        return ring_is_finished(self.c)

    @cython.critical_section
    def try_pop(self, out):
        """Copy the next slot into ``out``, a writable buffer of exactly one slot's size.

        Returns
        -------
        bool
            False if the ring is empty; nothing has happened then.
        """
        return self.pop(out, True) == 1

    @cython.critical_section
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
        return self.pop(out, False)

    cdef inline int64_t pop(self, out, bint is_one) except -1:
        cdef borrowed_t b
        cdef int64_t count
        borrow(out, &b, True)
        try:
            require_idle(self)
            count = ring_try_pop(self.c, b.address, slots_in(self, &b, is_one))
        finally:
            end_borrow(&b)
        return checked(self, count)

    @cython.critical_section
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
        cdef uint64_t most = checked_count(count, self.capacity)
        require_idle(self)
        cdef const char *address = ring_peek(self.c, most, &found)
        checked(self, found)
        return None if address == NULL else self.lend(address, found * self.c.slot_nbytes, True)

    @cython.critical_section
    def release(self, count=None):
        """Give back the first ``count`` peeked slots (all if None) and end the view; the others come again.

        Raises
        ------
        BufferError
            An array or slice of the view is still alive. Nothing was given back; delete it and call again.
        ValueError
            Nothing is peeked, or fewer slots than ``count``.
        """
        ring_release(self.c, self.taken(count, &self.c.peeked))
