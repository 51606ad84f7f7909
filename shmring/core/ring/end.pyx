"""One end of a ring, as a Python object: taking the role, leases, waiting, the other end's state, leaving.

The ends of channels (channels/ring_ends.pyx) add shared memory and waiting; `Producer` and `Consumer` are the ends of a
ring in any buffer.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX
from libc.string cimport strerror

import numpy as np

from shmring.core.c.atomics cimport load_acquire_u32
from shmring.core.arrays.lease cimport borrow, borrowed_t, end_borrow
from shmring.core.base.timeouts cimport checked_count
from shmring.core.ring.blocking cimport (LATE, NO_SOCKET, arm, awaited_t, await_briefly, await_step, drive, is_vacant,
                                    look_once, wait_t, wake_at_once)
from shmring.core.ring.spsc cimport (END_LOST, RING_CORRUPT, RING_FOREIGN, RING_TAKEN, ROLE_DISCONNECTED, ring_abort,
                                ring_attach_consumer, ring_attach_producer, ring_commit, ring_end_state, ring_free,
                                ring_in, ring_is_finished, ring_leave, ring_ready, ring_release, ring_try_pop,
                                ring_try_push)
from shmring.core.sync.backoff cimport before_wake
from shmring.core.sync.group cimport READY
from shmring.core.sync.notifier cimport Notifier, disarm

from shmring.errors import ClosedError, RoleTakenError, SegmentError
from shmring.core.ring.spsc import END_STATES

UINT8 = np.dtype(np.uint8)

OTHER_ROLES = {"producer": "consumer", "consumer": "producer", "sender": "receiver", "receiver": "sender"}


# no_gc, here and below: in a garbage cycle the collector clears a memoryview although its memory is exported to an end,
# and the mapping goes before the ring is left. The collector need not follow an export: an end is in a cycle only if
# the exporter makes one.
@cython.final
@cython.no_gc
cdef class Export:
    """The memory of a buffer, kept as long as this object."""

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.memory, PyBUF_WRITABLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.memory)     # nothing if there is no export


@cython.no_gc
cdef class RingEnd:
    """One end of one ring.

    Belongs to the process that takes it, and to one thread at a time.
    """

    cdef int place(self, object memory, char *base, size_t nbytes, str role) except -1:
        """Set where the ring is; called before everything else."""
        self.memory, self.role = memory, role
        self.is_producer = role in ("producer", "sender")
        if nbytes < sizeof(shmring_ring):
            raise SegmentError(f"there is no ring, or only a part of one, in the memory of {self.title()}")
        self.ring, self.ring_nbytes = <shmring_ring *>base, nbytes
        self.watch.yields, self.watch.peer_socket, self.watch.writes_notes = 4, NO_SOCKET, True
        self.watch_consumer(0)
        return 0

    cdef void watch_consumer(self, uint64_t number) noexcept:
        """Set the consumer that this end is, or that it waits for; `attach` has checked that there are so many."""
        cdef watch_t *w = &self.watch
        cdef shmring_ring *ring = self.ring
        if w.notice != NULL:
            disarm(w.notice)
        if self.is_producer:
            w.awaited_end += 2 * (<int64_t>number - <int64_t>self.number)
        self.number = number
        w.own = &ring.heads[number].consumer
        w.other = &ring.producer
        w.word, w.bed = &w.own.waiter.asleep, &w.own.waiter.wake
        w.peer, w.wake = &ring.heads[number].producer_asleep, &w.other.waiter.wake
        w.counts = &ring.heads[number].received
        if self.is_producer:
            w.own, w.other = w.other, w.own
            w.word, w.peer = w.peer, w.word
            w.bed, w.wake = w.wake, w.bed
            w.counts = &ring.sent

    cdef void join_prospects(self, Prospects prospects, int64_t own_end, int64_t other_end) noexcept:
        """Show other processes that this one may take this end, and note the number of the other end there."""
        self.prospects, self.own_end, self.is_prospect = prospects, own_end, True
        self.watch.prospects, self.watch.awaited_end = &prospects.known, other_end
        prospects.add(own_end)

    cdef void leave_prospects(self) noexcept:
        if self.is_prospect:
            self.is_prospect = False
            self.prospects.remove(self.own_end)

    cdef object title(self):
        """How error messages name the ring."""
        return "this ring"

    # ---- taking ----

    cdef int attach(self, bint again) noexcept:
        if self.is_producer:
            return ring_attach_producer(&self.p, self.ring, self.ring_nbytes, again, not self.owned_by_lock,
                                        self.expected_nbytes)
        return ring_attach_consumer(&self.c, self.ring, self.ring_nbytes, again, not self.owned_by_lock,
                                    self.expected_nbytes, self.number)

    cdef int attached(self) except? -1:
        """Take the role, under the lock of the name if there is one: 0, a RING_ code, or an errno."""
        return take_role(self, False)

    cdef int prepare(self) except -1:
        """Take the end if no process has it yet; raise if it cannot be used."""
        cdef int code
        self.require_open()
        self.require_usable()
        if self.is_taken:
            return 0
        code = self.attached()
        if code:
            self.refuse(code)
        return self.require_usable()       # another thread may have begun a call meanwhile

    cdef int refuse(self, int code) except -1:
        """Raise the error of a code of attaching."""
        if code == RING_TAKEN:
            pid = self.watch.own.liveness.pid
            state = ("being taken", "alive", "closed by it", "its holder is dead")[ring_end_state(self.watch.own)]
            raise RoleTakenError(f"process {pid} has taken the {self.role} of {self.title()} ({state})", pid)
        if code == RING_FOREIGN:
            raise SegmentError(f"there is no ring, or only a part of one, in the memory of {self.title()}, or its "
                               "header is corrupted")
        if code == RING_CORRUPT:
            raise SegmentError(f"{self.title()} is corrupted: it has invalid counters (impossible distance of tail and "
                               "head)")
        raise OSError(code, f"cannot register the {self.role} for death detection: {strerror(code).decode()}")

    @cython.critical_section
    def take(self):
        """Make this end belong to this process now, instead of at its first use.

        Returns
        -------
        object
            This end itself.

        Raises
        ------
        RoleTakenError
            Another process, or another object of this one, has or had this end; ``pid`` is the holder's. An end of a
            named channel can be taken again once its holder has closed it or died.
        ClosedError
            This end was closed here, or taken before this process was forked from its holder.
        """
        self.prepare()
        return self

    # ---- what calls require ----

    cdef int require_open(self) except -1:
        if self.is_closed or self.ring == NULL:
            raise ClosedError(f"this {self.role} is closed, or was never made")
        if self.is_taken and self.generation != fork_generation():
            raise ClosedError(f"this {self.role} belongs to the process that this one was forked from")
        return 0

    cdef int require_usable(self) except -1:
        if self.is_closed:
            raise ClosedError(f"this {self.role} is closed")
        if self.is_busy:
            raise RuntimeError(f"another thread is in a call of this {self.role}: an end is for one thread at a time")
        return 0

    cdef int require_idle(self) except -1:
        if not is_held(self):
            self.prepare()
        if self.lease is not None:
            raise ValueError("a lease is still open: commit, abort or release it first")
        return 0

    # ---- leases ----

    cdef int end_lease(self) except -1:
        self.lease.end()
        self.lease = None
        return 0

    cdef int give_up_lease(self) except -1:
        """End the lease of slots that were reserved; nothing is committed."""
        require_lease(self)
        self.end_lease()
        ring_abort(&self.p)
        return 0

    # ---- waiting ----

    cdef int wait_for(self, const uint64_t *counter, uint64_t until, uint64_t wake_at, int64_t timeout_ns) except -1:
        """As `await_rings`, for a counter of the other end that must reach ``until``."""
        cdef awaited_t awaited
        cdef wait_t wait
        awaited.watch, awaited.counter, awaited.until, awaited.wake_at = &self.watch, counter, until, wake_at
        wait.awaited, wait.n = &awaited, 1
        self.note_timeout(timeout_ns)
        return await_rings(self, &wait, timeout_ns, self.notifier, &self.is_busy)

    cdef int note_timeout(self, int64_t timeout_ns) except -1:
        """Before a wait for an end that may not be taken yet."""
        if self.prospects is not None and not load_acquire_u32(&self.watch.other.taken):
            self.prospects.forget_arrived()
            self.watch.waits_for_ever = timeout_ns < 0
        return 0

    cdef object corrupt(self):
        other = OTHER_ROLES[self.role]
        return SegmentError(f"the {other}'s counter, or a frame, is invalid in {self.title()}: no data was transferred "
                            "by this call")

    # ---- leaving ----

    @cython.critical_section
    def close(self):
        """Close this end in good order: nothing more will be sent, or received. Idempotent.

        Messages that were sent stay receivable. Without this call (garbage collection, the end of the interpreter, a
        ``with`` block left by an exception, death) the other end gets ``lost`` as this end's state, not ``closed``.

        Raises
        ------
        BufferError
            Arrays or views of a lease are alive. Nothing was closed; delete them and call again.
        """
        self.close_end(True)

    cdef int close_end(self, bint in_good_order) except -1:
        cdef bint is_own = self.is_taken and self.generation == fork_generation()
        if self.is_closed:
            return 0
        if is_own:
            self.require_usable()
            if self.lease is not None:
                self.end_lease()
        self.is_closed = True
        self.drop_notifier()
        self.leave_prospects()
        if is_own:
            self.leave(in_good_order)
        self.is_taken = False
        return 0

    cdef void drop_notifier(self) noexcept:
        self.watch.notice = NULL
        self.notifier = None           # it waits in a waiter word of the ring

    cdef void leave(self, bint in_good_order) noexcept:
        if not self.owned_by_lock:
            ring_leave(self.watch.own, in_good_order)
            self.wake_others()

    cdef void wake_others(self) noexcept:
        """Wake the other ends if they sleep."""
        cdef uint64_t i
        before_wake()
        if not self.is_producer:
            wake_at_once(self.watch.peer, self.watch.wake)
            return
        for i in range(self.p.nheads):
            self.watch_consumer(i)
            wake_at_once(self.watch.peer, self.watch.wake)

    @cython.critical_section
    def __enter__(self):
        self.prepare()
        return self

    @cython.critical_section
    def __exit__(self, exception_type, exception, traceback):
        self.close_end(exception_type is None)

    def __dealloc__(self):
        self.drop_notifier()
        self.leave_prospects()
        if self.is_taken and self.generation == fork_generation():
            self.leave(False)

    # ---- state ----

    cdef int peer_state(self) noexcept:
        if not self.is_producer and self.watch.own.closed == ROLE_DISCONNECTED:
            return END_LOST
        return END_LOST if is_vacant(&self.watch) else ring_end_state(self.watch.other)

    @property
    def closed(self):
        """Whether this end was closed here."""
        return self.is_closed or self.ring == NULL

    @property
    @cython.critical_section
    def peer(self):
        """State of the other end: ``absent``, ``here``, ``closed``, or ``lost`` (its holder died, or left it open)."""
        self.require_open()
        return END_STATES[self.peer_state()]

    @property
    @cython.critical_section
    def peer_pid(self):
        """Process id of the other end's holder in its own PID namespace; 0 if no process has taken it yet."""
        if self.memory is None:
            raise ClosedError(f"this {self.role} is closed")
        return self.watch.other.liveness.pid


cdef int await_rings(object end, wait_t *wait, int64_t timeout_ns, Notifier notifier, bint *is_busy) except -1:
    """READY, GONE or LATE. Releases the GIL unless one of the counters has come; handles signals.

    A waiter word has room for one waiter: the notifier leaves it to this call, and waits again once a call with
    ``timeout=0`` has found nothing to do.
    """
    cdef int outcome
    if timeout_ns == 0:
        outcome = look_once(wait.awaited, wait.n)
        if outcome == LATE and notifier is not None:
            arm(notifier, wait.awaited)
        return outcome
    if await_briefly(wait.awaited, wait.n) == READY:
        return READY
    return drive(await_step, end, wait, timeout_ns, is_busy, wait.awaited[0].watch.writes_notes)


cdef int take_role(RingEnd end, bint again) noexcept:
    """Attach, and record it: 0, a RING_ code, or an errno. No Python code may run between taking the role in the ring
    and recording it here: a signal handler or thread would see one without the other."""
    cdef int code
    if end.is_taken:      # another thread was quicker
        return 0
    code = end.attach(again)
    if code:
        return code
    end.watch.word[0] = 0             # the last holder may have died asleep
    end.generation = fork_generation()
    end.is_taken = True
    end.leave_prospects()
    return 0


# ---- the ends of a ring in any buffer --------------------------------------------------------------------------------

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
        RingEnd.close_end(self, in_good_order)
        self.memory = None
        return 0

    # ---- slots ----

    @cython.final
    cdef inline size_t slot_size(self) noexcept:
        return self.p.slot_nbytes if self.is_producer else self.c.slot_nbytes

    @cython.final
    cdef inline uint64_t slots_in(self, borrowed_t *b, bint is_one) except? 0:
        """The number of slots in a caller's memory: exactly one, or any whole number."""
        cdef size_t nbytes = self.slot_size()
        if b.nbytes != nbytes if is_one else b.nbytes % nbytes:
            self.refuse_size(b.nbytes, nbytes, is_one)
        return b.nbytes // nbytes

    cdef int refuse_size(self, size_t nbytes, size_t slot_nbytes, bint is_one) except -1:
        if is_one:
            raise ValueError(f"a slot has {slot_nbytes} bytes, not {nbytes}")
        raise ValueError(f"{nbytes} bytes are not a whole number of slots of {slot_nbytes} bytes")

    @cython.final
    cdef inline int64_t checked(self, int64_t count) except -1:
        if count < 0:
            raise self.corrupt()
        return count

    @cython.final
    cdef inline int64_t move(self, data, bint is_one) except -1:
        """Copy slots from, or to, a caller's memory; return their number."""
        cdef borrowed_t b
        cdef int64_t count
        borrow(data, &b, not self.is_producer)
        try:
            self.require_idle()      # now: exporting memory may have run Python code
            if self.is_producer:
                count = ring_try_push(&self.p, b.address, self.slots_in(&b, is_one))
            else:
                count = ring_try_pop(&self.c, b.address, self.slots_in(&b, is_one))
        finally:
            end_borrow(&b)
        return self.checked(count)

    cdef object lend_view(self, object count):
        """A view of up to ``count`` slots, or None."""
        cdef uint64_t most = checked_count(count, INT64_MAX)
        self.require_idle()
        if not lend(self, most, UINT8, self.slot_size()):
            return None
        self.view = memoryview(self.lease.span)
        return self.view

    cdef int end_lease(self) except -1:
        """Raises if an array or a slice of the view is still alive, as mmap does."""
        self.view.release()
        RingEnd.end_lease(self)
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
    """The writing end of a ring, which has one in its life.

    Belongs to the process that made it, and to one thread at a time. No call blocks. Calls raise `ClosedError` after
    `close`, `SegmentError` if the consumer's counter is impossible, and ``ValueError`` for a wrong number of bytes;
    then nothing was transferred.

    Parameters
    ----------
    buffer : writable buffer
        Holds a ring made by `format_ring`. It cannot be closed or resized before this end is closed.

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
        """int : Slots that are free now. Without a push the number only grows."""
        self.require_open()
        return self.checked(ring_free(&self.p, self.p.capacity))

    @cython.critical_section
    def try_push(self, data):
        """Copy ``data``, exactly one slot's worth of bytes, into the ring.

        Returns
        -------
        bool
            False if the ring is full: nothing was copied.
        """
        return self.move(data, True) == 1

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
            The number of slots that were pushed.
        """
        return self.move(data, False)

    @cython.critical_section
    def reserve(self, count=1):
        """Lend up to ``count`` free slots to write in place.

        Returns
        -------
        memoryview or None
            Writable bytes of one or more contiguous slots (fewer than ``count`` when nearly full, or where the ring
            wraps), valid until `commit` or `abort`; None if the ring is full. Their content is undefined.

        Raises
        ------
        ValueError
            The last reservation is still open.
        """
        return self.lend_view(count)

    @cython.critical_section
    def commit(self, count=None):
        """Hand over the first ``count`` reserved slots (all if None), give up the others, and end the view.

        Raises
        ------
        BufferError
            An array or slice of the view is alive. Nothing was handed over; delete it and call again.
        ValueError
            Nothing is reserved, or fewer slots than ``count``.
        """
        ring_commit(&self.p, end_part(self, count))

    @cython.critical_section
    def abort(self):
        """Give up the reserved slots and end the view; the consumer sees nothing of them. Raises as `commit` does."""
        self.give_up_lease()


@cython.final
@cython.no_gc
cdef class Consumer(BareEnd):
    """The reading end of a ring, which has one in its life.

    Belongs to the process that made it, and to one thread at a time. No call blocks. Calls raise `ClosedError` after
    `close`, `SegmentError` if the producer's counter is impossible, and ``ValueError`` for a wrong number of bytes;
    then nothing was transferred.

    Parameters
    ----------
    buffer : writable buffer
        Holds a ring made by `format_ring`. It cannot be closed or resized before this end is closed.

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
        """int : Slots that can be read now. Without a pop the number only grows."""
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
            False if the ring is empty: nothing was copied.
        """
        return self.move(out, True) == 1

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
            The number of slots that were popped.
        """
        return self.move(out, False)

    @cython.critical_section
    def peek(self, count=1):
        """Lend up to ``count`` filled slots to read in place.

        Returns
        -------
        memoryview or None
            Read-only bytes of one or more contiguous slots (fewer than ``count`` when nearly empty, or where the ring
            wraps), valid until `release`; None if the ring is empty.

        Raises
        ------
        ValueError
            The last peek is still open.
        """
        return self.lend_view(count)

    @cython.critical_section
    def release(self, count=None):
        """Give back the first ``count`` peeked slots (all if None) and end the view; the others stay readable.

        Raises
        ------
        BufferError
            An array or slice of the view is alive. Nothing was given back; delete it and call again.
        ValueError
            Nothing is peeked, or fewer slots than ``count``.
        """
        ring_release(&self.c, end_part(self, count))
