"""The two ends of a ring as Python objects: they check arguments, take pointers and call ``ring/spsc.pxd``."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

import numpy as np

from shmring.base.timeouts cimport checked_count, checked_part, int_or_none
from shmring.arrays.lease cimport borrow, borrowed_t, end_borrow, make_lease
from shmring.ring.end cimport Export, RingEnd, is_held
from shmring.ring.spsc cimport (ring_abort, ring_commit, ring_free, ring_in, ring_is_finished, ring_peek, ring_ready,
                                ring_release, ring_reserve, ring_try_pop, ring_try_push)

UINT8 = np.dtype(np.uint8)


# no_gc: see ring/end.pyx.
@cython.no_gc
cdef class BareEnd(RingEnd):
    """An end of a ring in any buffer, taken at once, without waiting."""

    cdef object view                   # what is lent, as bytes

    cdef int use(self, buffer, str role) except -1:
        cdef Export export = Export(buffer)
        cdef size_t nbytes
        cdef char *base = ring_in(&export.memory, &nbytes)
        self.place(export, base, nbytes, role)
        return self.prepare()

    cdef int close_end(self, bint in_good_order) except -1:
        if is_held(self) and self.lease is not None:
            self.take_back()
        RingEnd.close_end(self, in_good_order)
        self.memory = None
        return 0

    # ---- slots ----

    cdef inline size_t slot_size(self) noexcept:
        return self.p.slot_nbytes if self.is_producer else self.c.slot_nbytes

    cdef inline uint64_t slots_in(self, borrowed_t *b, bint is_one) except? 0:
        """How many slots a caller's memory is long: exactly one, or any whole number."""
        cdef size_t nbytes = self.slot_size()
        if b.nbytes != nbytes if is_one else b.nbytes % nbytes:
            self.refuse_size(b.nbytes, nbytes, is_one)
        return b.nbytes // nbytes

    cdef int refuse_size(self, size_t nbytes, size_t slot_nbytes, bint is_one) except -1:
        if is_one:
            raise ValueError(f"a slot has {slot_nbytes} bytes, not {nbytes}")
        raise ValueError(f"{nbytes} bytes are not a whole number of slots of {slot_nbytes} bytes")

    cdef inline int64_t checked(self, int64_t count) except -1:
        if count < 0:
            raise self.corrupt()
        return count

    # ---- slots that are lent ----

    cdef object lend(self, const char *address, int64_t count, bint is_readonly):
        if self.checked(count) == 0:
            return None
        self.lease = make_lease(self.memory, <char *>address, UINT8, (count * <int64_t>self.slot_size(),), is_readonly)
        self.view = memoryview(self.lease.span)
        return self.view

    cdef uint64_t taken(self, count, const uint64_t *lent) except? 0:
        """End the view; how many of the lent slots ``count`` stands for."""
        cdef uint64_t n
        count = int_or_none(count)
        self.require_lease("reserved or peeked")
        n = checked_part(count, lent[0])
        self.take_back()
        return n

    cdef int take_back(self) except -1:
        """End the view. Raises if an array or a slice of it is still alive, as mmap does."""
        self.require_lease("reserved or peeked")
        self.view.release()
        self.end_lease()
        self.view = None
        return 0

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} belongs to one process; attach another to the same buffer instead")

    def __repr__(self):
        return f"<shmring.ring.{type(self).__name__} of {self.nslots} slots of {self.slot_nbytes} bytes>"

    @property
    def nslots(self):
        """int : Capacity of the ring in slots."""
        return self.p.capacity if self.is_producer else self.c.capacity

    @property
    def slot_nbytes(self):
        """int : Size of each slot in bytes."""
        return self.slot_size()


@cython.final
@cython.no_gc
cdef class Producer(BareEnd):
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

    def __cinit__(self, buffer):
        self.use(buffer, "producer")

    @property
    @cython.critical_section
    def tail(self):
        """int : Slots ever committed, modulo 2**64."""
        return self.p.tail

    @property
    @cython.critical_section
    def free_count(self):
        """int : Slots that are free now; there may be more a moment later, never fewer."""
        self.require_open()
        return self.checked(ring_free(&self.p, self.p.capacity))

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
            self.require_idle()      # now: exporting memory may have run Python code
            count = ring_try_push(&self.p, b.address, self.slots_in(&b, is_one))
        finally:
            end_borrow(&b)
        return self.checked(count)

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
        cdef uint64_t most = checked_count(count, self.p.capacity)
        self.require_idle()
        cdef char *address = ring_reserve(&self.p, most, &found)
        return self.lend(address, found, False)

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
        ring_commit(&self.p, self.taken(count, &self.p.reserved))

    @cython.critical_section
    def abort(self):
        """Give up the reserved slots and end the view; the consumer sees nothing of them. Raises as `commit` does."""
        self.take_back()
        ring_abort(&self.p)


@cython.final
@cython.no_gc
cdef class Consumer(BareEnd):
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

    def __cinit__(self, buffer):
        self.use(buffer, "consumer")

    @property
    @cython.critical_section
    def head(self):
        """int : Slots ever released, modulo 2**64."""
        return self.c.head

    @property
    @cython.critical_section
    def ready_count(self):
        """int : Slots that can be read now; there may be more a moment later, never fewer."""
        self.require_open()
        return self.checked(ring_ready(&self.c, self.c.capacity))

    @property
    @cython.critical_section
    def ended(self):
        """bool : Whether the producer closed its end in good order and everything it committed was released."""
        self.require_open()
        return ring_is_finished(&self.c)

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
            self.require_idle()
            count = ring_try_pop(&self.c, b.address, self.slots_in(&b, is_one))
        finally:
            end_borrow(&b)
        return self.checked(count)

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
        cdef uint64_t most = checked_count(count, self.c.capacity)
        self.require_idle()
        cdef const char *address = ring_peek(&self.c, most, &found)
        return self.lend(address, found, True)

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
        ring_release(&self.c, self.taken(count, &self.c.peeked))
