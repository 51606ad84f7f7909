"""What the two ends of a ring have in common as Python objects: attaching, leases, leaving."""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport free
from libc.string cimport memset, strerror
from posix.stdlib cimport posix_memalign

from shmring._c.layout cimport SHMRING_FALSE_SHARING, shmring_ring
from shmring.base.timeouts cimport checked_part, int_or_none
from shmring.arrays.lease cimport make_span
from shmring.ring.spsc cimport (RING_CORRUPT, RING_FOREIGN, RING_TAKEN, consumer_t, producer_t, ring_attach_consumer,
                                ring_attach_producer, ring_end_state, ring_in, ring_leave)

from shmring.errors import ClosedError, RoleTakenError, SegmentError
from shmring.ring.spsc import END_STATES


# The private state of an end, alone on its lines: two ends in one process are used by two threads.
cdef void *isolated(size_t nbytes) except NULL:
    cdef void *address = NULL
    nbytes = (nbytes + SHMRING_FALSE_SHARING - 1) // SHMRING_FALSE_SHARING * SHMRING_FALSE_SHARING
    if posix_memalign(&address, SHMRING_FALSE_SHARING, nbytes) != 0:
        raise MemoryError
    memset(address, 0, nbytes)
    return address


# no_gc, here and below: in a garbage cycle the collector clears a memoryview although its memory is exported to an end,
# and the mapping goes before the ring is left. What lies behind an export is none of the collector's business: nothing
# that an end refers to refers back to it, unless the exporter itself does.
@cython.final
@cython.no_gc
cdef class Export:
    """The memory of a buffer, kept as long as this object."""

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.memory, PyBUF_WRITABLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.memory)     # nothing if there is no export


@cython.no_gc
cdef class End:
    """What both ends of a ring have in common; made by `Producer` and `Consumer`."""

    cdef int attach(self, buffer, bint is_producer) except -1:
        """Take the end of the ring in a buffer; ``private`` becomes a producer_t or a consumer_t."""
        cdef size_t nbytes
        cdef char *base
        cdef int code
        self.export, self.is_producer = Export(buffer), is_producer
        base = ring_in(&self.export.memory, &nbytes)
        self.own, self.other = &(<shmring_ring *>base).producer, &(<shmring_ring *>base).consumer
        if is_producer:
            self.private = isolated(sizeof(producer_t))
            code = ring_attach_producer(<producer_t *>self.private, base, nbytes)
        else:
            self.own, self.other = self.other, self.own
            self.private = isolated(sizeof(consumer_t))
            code = ring_attach_consumer(<consumer_t *>self.private, base, nbytes)
        if code == RING_FOREIGN:
            raise SegmentError("this buffer holds no ring, or only a part of one")
        if code == RING_CORRUPT:
            raise SegmentError("the ring in this buffer has invalid counters (impossible distance of tail and head)")
        if code == RING_TAKEN:
            pid = self.own.liveness.pid
            state = ("just arriving", "alive", "closed", "dead")[ring_end_state(self.own)]
            role = "producer" if is_producer else "consumer"
            raise RoleTakenError(f"process {pid} took the {role}'s end of this ring (now {state})", pid)
        if code:
            raise OSError(code, f"cannot hold a liveness: {strerror(code).decode()}")
        self.generation = fork_generation()
        self.is_open = True
        return 0

    cdef object lend(self, const char *address, uint64_t nbytes, bint is_readonly):
        self.span = make_span(self.export, <char *>address, nbytes, is_readonly)
        self.view = memoryview(self.span)
        return self.view

    cdef uint64_t taken(self, count, const uint64_t *lent) except? 0:
        """End the view; how many of the lent slots ``count`` stands for."""
        count = int_or_none(count)
        cdef uint64_t n = checked_part(count, lent[0])
        self.take_back()
        return n

    cdef int take_back(self) except -1:
        """End the view. Raises if an array or a slice of it is still alive, as mmap does."""
        require_open(self)
        if self.span is None:
            raise ValueError("nothing is reserved or peeked: call reserve() or peek() first")
        self.view.release()
        if self.span.exports:
            raise BufferError("slices or arrays of this view are still alive: delete them and call again")
        self.span = self.view = None
        return 0

    cdef void leave_ring(self, bint in_good_order) noexcept:
        if self.is_open and self.generation == fork_generation():
            ring_leave(self.own, in_good_order)
        self.is_open = False

    @cython.critical_section
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
        self.export = None
        return 0

    @cython.critical_section
    def __enter__(self):
        require_open(self)
        return self

    @cython.critical_section
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
    @cython.critical_section
    def peer(self):
        """{"absent", "here", "closed", "lost"} : How the other end stands; ``lost``: died, or left without closing."""
        require_open(self)
        return END_STATES[ring_end_state(self.other)]


cdef int refuse_closed(End end) except -1:
    if end.is_open:
        raise ClosedError(f"this {type(end).__name__} belongs to the process this one was forked from")
    raise ClosedError(f"this {type(end).__name__} is closed")


cdef int refuse_lent(End end) except -1:
    raise ValueError("slots are still reserved or peeked: commit, abort or release them first")


cdef int refuse_size(End end, size_t nbytes, bint is_one) except -1:
    if is_one:
        raise ValueError(f"a slot has {end.nbytes} bytes, not {nbytes}")
    raise ValueError(f"{nbytes} bytes are not a whole number of slots of {end.nbytes} bytes")


cdef int refuse_counter(End end) except -1:
    side = "consumer" if end.is_producer else "producer"
    raise SegmentError(f"the {side}'s counter of this ring is invalid: nothing was read or written")
