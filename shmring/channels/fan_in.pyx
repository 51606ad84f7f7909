"""The receiver of a fan-in: one ring from each sender, one wait for all of them."""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

import queue

from shmring._c.atomics cimport cpu_pause, load_acquire_u64, load_relaxed_u64
from shmring._c.layout cimport sem_t, shmring_waiter
from shmring.base.timeouts cimport timeout_to_ns
from shmring.channels.endpoint cimport Endpoint, deadline_of, left_until
from shmring.channels.ring_ends cimport RingReceiver
from shmring.channels.eventfd cimport Notifier
from shmring.memory.mapping cimport Mapping
from shmring.ring.blocking cimport LATE
from shmring.ring.overwrite cimport position_of
from shmring.ring.spsc cimport END_CLOSED, END_LOST, ring_end_state
from shmring.ring.wait_any cimport any_has_come, await_any, awaited_t
from shmring.sync.backoff cimport BRIEF_LOOKS, be_patient, patience_t
from shmring.sync.group cimport READY, UNREADY

from shmring.channels.aio import when_ready
from shmring.channels.multi_ring import RingSet
from shmring.channels.receiver import Receiver
from shmring.channels.record_receiver import RecordReceiver
from shmring.errors import EndOfStreamError, PeerLostError

cdef bint is_empty(RingReceiver receiver) noexcept:
    cdef uint64_t head = load_relaxed_u64(&receiver.ring.head)
    return load_acquire_u64(&receiver.ring.tail) == position_of(receiver.ring, head)


cdef bint has_left(RingReceiver receiver) noexcept:
    cdef int state = ring_end_state(receiver.watch.other)
    return state == END_CLOSED or state == END_LOST


@cython.final
@cython.no_gc
cdef class FanInReceiver(Endpoint):
    """The receiving end of a fan-in; made by `shmring.fan_in`.

    Takes from its senders in turn: after a message from one, every other that has something comes before that one comes
    again. The messages of one sender keep their order; between senders there is none. Belongs to the process that
    uses it first, and to one thread at a time.
    """

    cdef readonly object rings     # the memory of all (channels/multi_ring.py)
    cdef list receivers
    cdef awaited_t *awaited        # of those that are not over: the first `nawaited`
    cdef uint64_t *untils
    cdef int count, nawaited, turn
    cdef list over                 # by sender: whether nothing more will come from it
    cdef sem_t *wake
    cdef object leased_by          # the receiver with the message that is peeked
    cdef Notifier notifier
    cdef readonly int last_sender  # the number of the sender of the last message; -1 before

    def __cinit__(self, rings):
        if not isinstance(rings, RingSet):
            raise TypeError(f"FanInReceiver({rings!r}): call shmring.fan_in() instead")
        cdef Mapping mapping = rings.mapping
        kind = Receiver if rings.dtype is None else RecordReceiver
        self.rings, self.count = rings, rings.count
        self.receivers = [kind(rings.ring(i), "receiver") for i in range(self.count)]
        self.awaited = <awaited_t *>calloc(self.count, sizeof(awaited_t))
        self.untils = <uint64_t *>calloc(self.count, sizeof(uint64_t))
        if self.awaited == NULL or self.untils == NULL:
            raise MemoryError
        self.wake = &(<shmring_waiter *>(mapping.address + <size_t>rings.common_waiter_offset)).wake
        self.last_sender, self.over = -1, [False] * self.count

    def __dealloc__(self):
        self.notifier = None           # its thread uses the receivers
        free(self.awaited)
        free(self.untils)

    cdef int prepare(self) except -1:
        cdef RingReceiver receiver
        self.require_usable("receiver")
        if self.leased_by is not None:
            raise ValueError("a lease is still open: release it first")
        for receiver in self.receivers:
            receiver.prepare()
        return self.require_usable("receiver")      # another thread may be in a call by now

    # ---- turns ----

    cdef object take_one(self, str method, tuple args):
        """``(receiver.method(*args),)`` of the first in turn that has something; None if none has.

        The first sender that is lost, once all it sent was received, is reported in its turn.
        """
        cdef int i, j
        cdef RingReceiver receiver
        for j in range(self.count):
            i = (self.turn + j) % self.count
            receiver = self.receivers[i]
            if self.over[i] or (is_empty(receiver) and not has_left(receiver)):
                continue
            try:
                found = getattr(receiver, method)(*args)
            except queue.Empty:        # part of a long message; the others need not wait for the rest
                continue
            except EndOfStreamError:
                self.over[i] = True
                continue
            except PeerLostError as error:
                self.over[i] = True
                self.turn = (i + 1) % self.count
                error.rank = i
                raise
            self.turn = (i + 1) % self.count
            self.last_sender = i
            return (found,)
        if all(self.over):
            raise EndOfStreamError("all senders are closed or dead, and all their messages were received")
        return None

    @cython.critical_section
    cdef object next(self, str method, tuple args, timeout):
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        self.prepare()
        while True:
            found = self.take_one(method, args)
            if found is not None:
                return found[0]
            if self.wait(left_until(deadline_ns, timeout_ns)) == LATE:
                raise queue.Empty

    # ---- waiting ----

    cdef int fill_in_awaited(self) except -1:
        """What is waited for: the next slot of each ring that is not over."""
        cdef RingReceiver receiver
        cdef awaited_t *a
        self.nawaited = 0
        for i, receiver in enumerate(self.receivers):
            if not self.over[i]:
                a = &self.awaited[self.nawaited]
                a.watch = &receiver.watch
                a.counter = &receiver.ring.tail
                a.until = position_of(receiver.ring, load_relaxed_u64(&receiver.ring.head)) + 1
                self.untils[self.nawaited] = a.until
                self.nawaited += 1
        return 0

    cdef int wait(self, int64_t timeout_ns) except -1:
        cdef patience_t patience
        cdef int outcome, _i
        self.fill_in_awaited()
        if timeout_ns == 0:
            if self.notifier is not None and not any_has_come(self.awaited, self.nawaited):
                self.arm()
            return LATE
        if self.notifier is not None:
            self.notifier.signal()
        if self.rings.spin_ns:
            for _i in range(BRIEF_LOOKS):
                if any_has_come(self.awaited, self.nawaited):
                    return READY
                cpu_pause()
        be_patient(&patience, timeout_ns)
        self.is_busy = True
        try:
            while True:
                with nogil:
                    outcome = await_any(self.awaited, self.nawaited, self.wake, &patience)
                if outcome != UNREADY:
                    return outcome
                PyErr_CheckSignals()
        finally:
            self.is_busy = False

    cdef int arm(self) except -1:
        cdef int i
        if self.notifier.notice.n != self.nawaited:      # some are over since
            self.notifier.signal()
        if self.notifier.is_signalled():
            self.notifier.notice.n = self.nawaited
            for i in range(self.nawaited):
                self.notifier.notice.awaited[i] = self.awaited[i]
        self.notifier.arm(self.untils)
        return 0

    # ---- receiving ----

    def recv(self, timeout=None):
        """Receive the next message of the sender that has the turn.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        bytes, numpy.ndarray, object or record
            As of `Receiver.recv`, or `RecordReceiver.recv`; `last_sender` is the number of its sender.

        Raises
        ------
        queue.Empty
            Nothing has come in time.
        PeerLostError
            A sender has died, or left without closing, and all that it had sent was received; ``rank`` is its number.
            Reported once for each; the others go on, and so may the caller.
        EndOfStreamError
            All senders are closed or dead, and all their messages were received.
        ObjectError, SegmentError
            As in `Receiver.recv`.
        """
        return self.next("recv", (0,), timeout)

    @cython.critical_section
    def recv_from(self, timeout=None):
        """Receive the next message, with the number of its sender. Raises as `recv`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        (int, object)
            The number of the sender, from 0 on, and the message.
        """
        message = self.next("recv", (0,), timeout)
        return self.last_sender, message

    def try_recv(self, default=None):
        """Receive the next message if there is one. Raises as `recv`.

        Parameters
        ----------
        default : object
            What to return if there is none.
        """
        try:
            return self.recv(0)
        except queue.Empty:
            return default

    def recv_many(self, count=None, timeout=None):
        """Receive what is there of the sender that has the turn; wait only for the first. Raises as `recv`.

        Parameters
        ----------
        count : int, optional
            How many at most.
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        list or numpy.ndarray
            One message or more, all of one sender; records as one array.
        """
        if count is not None and count < 1:
            raise ValueError(f"count={count}: must be at least 1")
        return self.next("recv_many", (count, 0), timeout)

    def recv_into(self, out, timeout=None):
        """Receive the next message, or records of one sender, into `out`. Raises as `Receiver.recv_into`.

        Parameters
        ----------
        out : writable buffer or array
            Filled from its beginning on.
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        int
            Bytes, or records, received.
        """
        return self.next("recv_into", (out, 0), timeout)

    def recv_async(self):
        """Await the next message of the sender that has the turn, in an event loop of asyncio.

        Returns
        -------
        coroutine
            Of what `recv` returns; raises as it does. Cancelled, it has received nothing.
        """
        return when_ready(self, self.recv)

    @cython.critical_section
    def peek(self, timeout=None):
        """Lease the next message, or records of one sender, where they lie. Raises as `Receiver.peek`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        Lease
            Until `release`.
        """
        lease = self.next("peek", (0,) if self.rings.dtype is None else (None, 0), timeout)
        self.leased_by = self.receivers[self.last_sender]
        return lease

    @cython.critical_section
    def release(self):
        """End the lease of what was peeked, which is then received. Raises as `Receiver.release`."""
        if self.leased_by is None:
            raise ValueError("nothing is peeked: call peek() first")
        self.leased_by.release()
        self.leased_by = None

    @cython.critical_section
    def poll(self, timeout=0):
        """Whether `recv` would not have to wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for that; None for ever.

        Returns
        -------
        bool
            Also True when `recv` would raise that a sender is lost, or that all are gone.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        self.prepare()
        while True:
            for i, receiver in enumerate(self.receivers):
                if not self.over[i] and receiver.poll():
                    if not receiver.ended:
                        return True
                    self.over[i] = True
            if all(self.over):
                return True
            if self.wait(left_until(deadline_ns, timeout_ns)) == LATE:
                return False

    @cython.critical_section
    def fileno(self):
        """A descriptor for event loops, readable when there may be something to receive: see `Receiver.fileno`."""
        self.prepare()
        if self.notifier is None:
            self.notifier = Notifier(self.count, self.rings.mapping)
            self.notifier.notice.wake = self.wake
        return self.notifier.notice.descriptor

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.recv()
        except EndOfStreamError:
            raise StopIteration from None

    # ---- state, and leaving ----

    def __len__(self):
        """Messages sent and not yet received, of all senders: a hint."""
        return sum(map(len, self.receivers))

    @property
    def peers(self):
        """State of each sender: ``absent``, ``here``, ``closed`` or ``lost``."""
        return [receiver.peer for receiver in self.receivers]

    @property
    def peer_pids(self):
        """Process id of each sender; 0 if no process has taken that end yet."""
        return [receiver.peer_pid for receiver in self.receivers]

    @cython.critical_section
    cdef int close_end(self, bint in_good_order) except -1:
        cdef RingReceiver receiver
        if self.is_closed:
            return 0
        self.require_usable("receiver")
        if self.leased_by is not None:
            self.release()
        self.is_closed = True
        self.notifier = None
        for receiver in self.receivers:
            receiver.close_end(in_good_order)
        return 0

    def __reduce__(self):
        for receiver in self.receivers:
            receiver.__reduce__()          # raises if it was used
        return FanInReceiver, (self.rings,)

    def __repr__(self):
        return f"<shmring.FanInReceiver of {self.count} senders{', closed' if self.is_closed else ''}>"
