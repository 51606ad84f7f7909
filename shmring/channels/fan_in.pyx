"""The receiver of a fan-in: one ring from each sender, one wait for all of them."""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

import queue

from shmring.channels.eventfd cimport Alarm
from shmring.ring.wait_any cimport any_has_come, await_any, awaited_t
from shmring._c.atomics cimport cpu_pause, load_acquire_u64, load_relaxed_u64
from shmring.channels.endpoint cimport DROPS_OLDEST, End, timeout_of
from shmring._c.layout cimport sem_t, shmring_waiter
from shmring.memory.mapping cimport Mapping
from shmring.ring.spsc cimport END_CLOSED, END_LOST, ring_end_state
from shmring.ring.blocking cimport LATE
from shmring.sync.backoff cimport BRIEF_LOOKS, be_patient, now_ns, patience_t
from shmring.sync.group cimport READY, UNREADY

from shmring.channels.aio import when_ready
from shmring.errors import ClosedError, EndOfStreamError, PeerLostError
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver

@cython.final
cdef class FanInReceiver:
    """The receiving end of a fan-in; made by `shmring.fan_in`.

    Takes from its senders in turn: after a message from one, every other that has something comes before that one comes
    again. The messages of one sender keep their order; between senders there is none. Belongs to the process that
    uses it first, and to one thread at a time.
    """

    cdef readonly object fan
    cdef list receivers
    cdef awaited_t *awaited        # of those that go on: the first `nawaited`
    cdef uint64_t *untils
    cdef int count, nawaited, turn
    cdef list over                 # by sender: whether nothing more will come of it
    cdef sem_t *wake
    cdef bint is_busy
    cdef bint is_closed
    cdef object lent_by            # the receiver whose message is peeked
    cdef Alarm alarm
    cdef readonly int last_sender  # whose the last message was; -1 before

    def __cinit__(self, fan):
        cdef Mapping mapping = fan.mapping
        kind = Receiver if fan.dtype is None else RecordReceiver
        self.fan = fan
        self.count = fan.count
        self.receivers = [kind(fan.branch(i), "receiver") for i in range(self.count)]
        self.over = [False] * self.count
        self.awaited = <awaited_t *>calloc(self.count, sizeof(awaited_t))
        self.untils = <uint64_t *>calloc(self.count, sizeof(uint64_t))
        if self.awaited == NULL or self.untils == NULL:
            raise MemoryError
        self.wake = &(<shmring_waiter *>(mapping.address + <size_t>fan.common_bell_offset)).wake
        self.last_sender = -1

    def __dealloc__(self):
        if self.alarm is not None:
            self.alarm.stop()
        free(self.awaited)
        free(self.untils)

    def take(self):
        """Make this end belong to this process now. Returns itself; raises as `Receiver.take`."""
        self.prepare()
        return self

    cdef int prepare(self) except -1:
        cdef End receiver
        if self.is_closed:
            raise ClosedError("this receiver is closed")
        if self.is_busy:
            raise RuntimeError("another thread is in a call of this receiver: an end is for one thread at a time")
        if self.lent_by is not None:
            raise ValueError("a lease is still open: release it first")
        for receiver in self.receivers:
            receiver.prepare()
        return 0

    # ---- whose turn it is ----

    cdef bint has_something(self, End receiver) noexcept:
        cdef uint64_t head = load_relaxed_u64(&receiver.ring.head)
        if receiver.drops == DROPS_OLDEST:
            head &= ~(<uint64_t>1 << 63)
        return load_acquire_u64(&receiver.ring.tail) != head

    cdef object take_one(self, call, args):
        """What ``call(receiver, *args)`` gives for the first in turn who has something; None if nobody has.

        The first that is lost, once all it sent was received, is reported in its turn.
        """
        cdef int i, j, state
        cdef End receiver
        for j in range(self.count):
            i = (self.turn + j) % self.count
            if self.over[i]:
                continue
            receiver = self.receivers[i]
            if not self.has_something(receiver):
                state = ring_end_state(receiver.watch.other)
                if state != END_CLOSED and state != END_LOST:
                    continue
            try:
                found = call(receiver, *args)
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
            raise EndOfStreamError("all senders are gone, and all that they sent was received")
        return None

    cdef object next(self, call, args, timeout):
        cdef int64_t timeout_ns = timeout_of(timeout), started = now_ns() if timeout_ns > 0 else 0, left = timeout_ns
        self.prepare()
        while True:
            found = self.take_one(call, args)
            if found is not None:
                return found[0]
            if timeout_ns > 0:
                left = max(<int64_t>0, timeout_ns - (now_ns() - started))
            if self.wait(left) == LATE:
                raise queue.Empty

    # ---- waiting ----

    cdef int look_around(self) except -1:
        """Fill in what is waited for: the next slot of each that goes on."""
        cdef End receiver
        cdef awaited_t *a
        self.nawaited = 0
        for i in range(self.count):
            if not self.over[i]:
                receiver = self.receivers[i]
                a = &self.awaited[self.nawaited]
                a.watch = &receiver.watch
                a.counter = &receiver.ring.tail
                a.until = load_relaxed_u64(&receiver.ring.head) + 1
                if receiver.drops == DROPS_OLDEST:
                    a.until = (a.until & ~(<uint64_t>1 << 63))
                self.untils[self.nawaited] = a.until
                self.nawaited += 1
        return 0

    cdef int wait(self, int64_t timeout_ns) except -1:
        cdef patience_t patience
        cdef int outcome, _i
        self.look_around()
        if timeout_ns == 0:
            if self.alarm is not None and not any_has_come(self.awaited, self.nawaited):
                self.arm()
            return LATE
        if self.alarm is not None:
            self.alarm.ring()
        if self.fan.spin_ns:
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
        if self.alarm.n != self.nawaited:      # since then some have gone
            self.alarm.ring()
        if self.alarm.is_rung():
            self.alarm.n = self.nawaited
            for i in range(self.nawaited):
                self.alarm.rings[i].watch = self.awaited[i].watch
                self.alarm.rings[i].counter = self.awaited[i].counter
        self.alarm.arm(self.untils)
        return 0

    # ---- receiving ----

    def recv(self, timeout=None):
        """Receive the next message of the sender whose turn it is.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        bytes, numpy.ndarray, object or record
            As of `Receiver.recv`, or `RecordReceiver.recv`; `last_sender` says whose it is.

        Raises
        ------
        queue.Empty
            Nothing has come in time.
        PeerLostError
            A sender has died, or left without closing, and all that it had sent was received; ``rank`` says which.
            Reported once for each; the others go on, and so may the caller.
        EndOfStreamError
            All senders are gone, and all that they sent was received.
        ObjectError, SegmentError
            As in `Receiver.recv`.
        """
        return self.next(receive, (0,), timeout)

    def recv_from(self, timeout=None):
        """Receive the next message, and say whose it is. Raises as `recv`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        (int, object)
            The number of the sender, from 0 on, and the message.
        """
        message = self.next(receive, (0,), timeout)
        return self.last_sender, message

    def try_recv(self, default=None):
        """Receive the next message if there is one. Raises as `recv`.

        Parameters
        ----------
        default : object
            What to return if there is none.

        Returns
        -------
        bytes, numpy.ndarray, object or record
            As of `recv`.
        """
        try:
            return self.recv(0)
        except queue.Empty:
            return default

    def recv_many(self, count=None, timeout=None):
        """Receive what is there of the sender whose turn it is; wait only for the first. Raises as `recv`.

        Parameters
        ----------
        count : int, optional
            At most so many.
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        list or numpy.ndarray
            One message or more, all of one sender; records as one array.
        """
        if count is not None and count < 1:
            raise ValueError(f"count={count}: must be at least 1")
        return self.next(receive_many, (count, 0), timeout)

    def recv_into(self, out, timeout=None):
        """Receive the next message, or records of one sender, into memory of one's own. Raises as `Receiver.recv_into`.

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
        return self.next(receive_into, (out, 0), timeout)

    def recv_async(self):
        """Await the next message of the sender whose turn it is, in an event loop of asyncio.

        Returns
        -------
        coroutine
            Of what `recv` gives; raises as it does. Cancelled, it has received nothing.
        """
        return when_ready(self, self.recv)

    def peek(self, timeout=None):
        """Lend the next message, or records of one sender, where they lie. Raises as `Receiver.peek`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        Lease
            Until `release`.
        """
        lease = self.next(look_at, (0,) if self.fan.dtype is None else (None, 0), timeout)
        self.lent_by = self.receivers[self.last_sender]
        return lease

    def release(self):
        """Give back what was peeked, and end the lease. Raises as `Receiver.release`."""
        if self.lent_by is None:
            raise ValueError("nothing is peeked")
        self.lent_by.release()
        self.lent_by = None

    def poll(self, timeout=0):
        """Whether `recv` would not have to wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for that; None for ever.

        Returns
        -------
        bool
            Also True when `recv` would say that a sender is lost, or that all are gone.
        """
        cdef End receiver
        cdef int64_t timeout_ns = timeout_of(timeout)
        self.prepare()
        while True:
            for i, receiver in enumerate(self.receivers):
                if not self.over[i] and (<object>receiver).poll():
                    if not (<object>receiver).ended:
                        return True
                    self.over[i] = True
            if all(self.over):
                return True
            if self.wait(timeout_ns) == LATE:
                return False

    def fileno(self):
        """A descriptor for event loops, readable when there may be something to receive: see `Receiver.fileno`."""
        self.prepare()
        if self.alarm is None:
            self.alarm = Alarm(self.count, self.fan.mapping)
            self.alarm.wake = self.wake
        return self.alarm.descriptor

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.recv()
        except EndOfStreamError:
            raise StopIteration from None

    # ---- how it stands, and leaving ----

    def __len__(self):
        """Messages sent and not yet received, of all senders: a hint."""
        return sum(map(len, self.receivers))

    @property
    def peers(self):
        """How each sender stands: ``absent``, ``here``, ``closed`` or ``lost``."""
        return [receiver.peer for receiver in self.receivers]

    @property
    def peer_pids(self):
        """Process id of each sender; 0 if nobody took that end yet."""
        return [receiver.peer_pid for receiver in self.receivers]

    @property
    def dropped_counts(self):
        """Messages of each sender that were ever dropped."""
        return [receiver.dropped_count for receiver in self.receivers]

    @property
    def received_counts(self):
        """Messages ever received of each sender."""
        return [receiver.received_count for receiver in self.receivers]

    @property
    def closed(self):
        """Whether this end was closed here."""
        return self.is_closed

    def close(self):
        """Close this end in good order: nothing more will be read, which senders hear as `PeerLostError`. Idempotent.

        Raises
        ------
        BufferError
            Arrays of a lease are still alive. Nothing was closed; delete them and call again.
        """
        self.close_all(True)

    cdef int close_all(self, bint in_good_order) except -1:
        cdef End receiver
        if self.is_closed:
            return 0
        if self.is_busy:
            self.prepare()
        if self.lent_by is not None:
            self.lent_by.release()
            self.lent_by = None
        if self.alarm is not None:
            self.alarm.stop()
            self.alarm = None
        self.is_closed = True
        for receiver in self.receivers:
            receiver.close_end(in_good_order)
        return 0

    def __enter__(self):
        self.prepare()
        return self

    def __exit__(self, exception_type, exception, traceback):
        self.close_all(exception_type is None)

    def __reduce__(self):
        for receiver in self.receivers:
            receiver.__reduce__()          # raises if it was used
        return FanInReceiver, (self.fan,)

    def __repr__(self):
        return f"<shmring.FanInReceiver of {self.count} senders{', closed' if self.is_closed else ''}>"


def receive(receiver, timeout):
    return receiver.recv(timeout)


def receive_many(receiver, count, timeout):
    return receiver.recv_many(count, timeout)


def receive_into(receiver, out, timeout):
    return receiver.recv_into(out, timeout)


def look_at(receiver, *args):
    return receiver.peek(*args)
