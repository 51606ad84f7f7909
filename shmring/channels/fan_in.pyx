"""The receiver of a fan-in: one ring from each sender, one wait for all of them.

It only chooses: `next_ready` returns the `Receiver` that has the turn, which makes all other calls.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

import queue

from shmring.base.timeouts cimport timeout_to_ns
from shmring.channels.ring_ends cimport RingReceiver, require_unused
from shmring.ring.blocking cimport LATE, awaited_t
from shmring.ring.end cimport await_rings
from shmring.ring.eventfd cimport Notifier
from shmring.ring.spsc cimport END_CLOSED, END_LOST, ring_end_state
from shmring.sync.backoff cimport deadline_of, left_until

from shmring.channels.aio import next_of, when_ready
from shmring.channels.multi_ring import MemberRing
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver
from shmring.errors import ClosedError, EndOfStreamError, PeerLostError


@cython.final
@cython.no_gc
cdef class FanInReceiver:
    """The receiving end of a fan-in; made by `shmring.fan_in`.

    Takes from its senders in turn: after a message of one sender, each other sender with a message comes before that
    sender comes again. The messages of one sender keep their order; between senders there is none. Belongs to the
    process that uses it first, and to one thread at a time.

    Attributes
    ----------
    last_sender : int
        The number of the sender of the last message, and of the last `next_ready`; -1 before.
    """

    def __cinit__(self, rings):
        if not isinstance(rings, list) or not rings or not all([isinstance(ring, MemberRing) for ring in rings]):
            raise TypeError(f"FanInReceiver({rings!r}): call shmring.fan_in() instead")
        kind = Receiver if rings[0].dtype is None else RecordReceiver
        self.rings, self.count = rings, len(rings)
        self.receivers = [kind(ring, "receiver") for ring in rings]
        self.ways.awaited = <awaited_t *>calloc(self.count, sizeof(awaited_t))
        if self.ways.awaited == NULL:
            raise MemoryError
        self.last_sender, self.over = -1, [False] * self.count

    def __dealloc__(self):
        self.notifier = None           # its thread uses the receivers
        free(self.ways.awaited)

    # ---- taking and leaving ----

    cdef int prepare(self) except -1:
        cdef RingReceiver receiver
        self.require_usable()
        if self.chosen is not None:
            self.chosen.require_idle()         # no lease of what was chosen last is open
        if self.is_taken:
            (<RingReceiver>self.receivers[0]).require_open()      # not in a child of the holder
            return 0
        for receiver in self.receivers:
            receiver.prepare()
        self.is_taken = True
        return self.require_usable()           # another thread may have begun a call meanwhile

    cdef int require_usable(self) except -1:
        if self.is_closed:
            raise ClosedError("this receiver is closed")
        if self.is_busy:
            raise RuntimeError("another thread is in a call of this receiver: an end is for one thread at a time")
        return 0

    @cython.critical_section
    def take(self):
        """Make this end belong to this process now. Raises as `Receiver.take`."""
        self.prepare()
        return self

    @cython.critical_section
    def close(self):
        """Close this end in good order. Raises as `Receiver.close`."""
        self.close_end(True)

    @cython.critical_section
    def __enter__(self):
        self.prepare()
        return self

    @cython.critical_section
    def __exit__(self, exception_type, exception, traceback):
        self.close_end(exception_type is None)

    cdef int close_end(self, bint in_good_order) except -1:
        cdef RingReceiver receiver
        if self.is_closed:
            return 0
        self.require_usable()
        if self.chosen is not None:
            self.chosen.close_end(in_good_order)       # raises, and nothing was closed, if it has leased memory
        self.is_closed = True
        self.notifier = None
        for receiver in self.receivers:
            receiver.close_end(in_good_order)
        return 0

    @property
    def closed(self):
        """Whether this end was closed here."""
        return self.is_closed

    # ---- turns ----

    cdef RingReceiver choose(self, int64_t timeout_ns, int64_t deadline_ns):
        """The first receiver in turn that has a message; None if none has. Raises for a sender that is lost."""
        cdef int i, j, state
        cdef RingReceiver receiver
        for j in range(self.count):
            i = (self.turn + j) % self.count
            receiver = self.receivers[i]
            if self.over[i]:
                continue
            state = ring_end_state(receiver.watch.other)   # first: messages sent before it left are not lost
            if not receiver.has_next(deadline_ns):
                if (state != END_CLOSED and state != END_LOST) or receiver.has_pieces():
                    continue
                self.over[i] = True
                if state == END_LOST:
                    raise self.sender_lost(i)
                continue
            self.turn = (i + 1) % self.count
            self.last_sender = i
            self.chosen = receiver
            return receiver
        if all(self.over):
            raise EndOfStreamError("all senders are closed or dead, and all their messages were received")
        for i in range(self.count):
            receiver = self.receivers[i]
            if not self.over[i] and receiver.is_never_taken(timeout_ns >= 0):
                self.over[i] = True
                raise self.sender_lost(i)
        return None

    cdef object sender_lost(self, int i):
        error = (<RingReceiver>self.receivers[i]).peer_lost()
        self.turn, error.rank = (i + 1) % self.count, i
        return error

    cdef RingReceiver await_ready(self, int64_t timeout_ns, int64_t deadline_ns):
        """As `choose`, but waits, and handles signals. None: the timeout has run out."""
        cdef int64_t left_ns
        cdef RingReceiver found
        self.prepare()
        while True:
            found = self.choose(timeout_ns, deadline_ns)
            if found is not None:
                return found
            left_ns = left_until(deadline_ns, timeout_ns)
            if self.wait(left_ns) == LATE:
                return None
            if left_ns == 0 and timeout_ns > 0:
                return self.choose(timeout_ns, deadline_ns)    # what is there is one more piece, or a message

    @cython.critical_section
    def next_ready(self, timeout=None):
        """Wait for the receiver that has the turn: it has a whole message, so its calls need not wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        Receiver
            Or `RecordReceiver`; `last_sender` is the number of its sender. Receive from it in any way: `recv`,
            `recv_many`, `recv_into`, `peek` and `release`.

        Raises
        ------
        queue.Empty
            No message came in time.
        PeerLostError
            A sender has died, or left without closing, and all its messages were received; ``rank`` is its number.
            Reported once for each sender; the channel stays usable with the others.
        EndOfStreamError
            All senders are closed or dead, and all their messages were received.
        ValueError
            A lease of the last `peek` is open.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout)
        found = self.await_ready(timeout_ns, deadline_of(timeout_ns))
        if found is None:
            raise queue.Empty
        return found

    # ---- waiting ----

    cdef int fill_in(self, awaited_t *awaited, int64_t timeout_ns) except -1:
        """Fill in the counters to wait for, the next slot of each ring that is not over, and return their number."""
        cdef RingReceiver receiver
        cdef int n = 0
        for i, receiver in enumerate(self.receivers):
            if not self.over[i]:
                receiver.see_whether_alone(timeout_ns >= 0)
                receiver.fill_in(&awaited[n])
                n += 1
        return n

    cdef int wait(self, int64_t timeout_ns) except -1:
        """LATE after the timeout; else a ring may have a message, or its sender is gone."""
        self.ways.n = self.fill_in(self.ways.awaited, timeout_ns)
        return await_rings(self, &self.ways, timeout_ns, self.notifier, &self.is_busy)

    @cython.critical_section
    def fileno(self):
        """A descriptor for event loops, readable when there may be a message to receive: see `Receiver.fileno`."""
        self.prepare()
        if self.notifier is None:
            self.notifier = Notifier(self.count, self.rings[0].mapping)
        return self.notifier.notice.descriptor

    # ---- receiving ----

    @cython.critical_section
    def recv(self, timeout=None):
        """Receive the next message of the sender that has the turn. Raises as `next_ready` and `Receiver.recv`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        bytes, numpy.ndarray, object or record
            As `Receiver.recv`, or `RecordReceiver.recv`, returns; `last_sender` is the number of its sender.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        while True:
            found = self.await_ready(timeout_ns, deadline_ns)
            if found is None:
                raise queue.Empty
            try:
                return found.recv(0)
            except queue.Empty:        # a lossy sender was quicker
                pass

    @cython.critical_section
    def recv_from(self, timeout=None):
        """Receive the next message, with the number of its sender: ``(last_sender, recv(timeout))``.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.
        """
        message = self.recv(timeout)
        return self.last_sender, message

    def try_recv(self, default=None):
        """Receive the next message if there is one. Raises as `recv`.

        Parameters
        ----------
        default : object
            The result if there is no message.
        """
        try:
            return self.recv(0)
        except queue.Empty:
            return default

    def recv_async(self):
        """Await what `recv` returns, in an event loop of asyncio: see `Receiver.recv_async`."""
        return when_ready(self, self.recv)

    @cython.critical_section
    def poll(self, timeout=0):
        """Whether `recv` would return or raise without waiting: see `Receiver.poll`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.
        """
        cdef int turn = self.turn, last_sender = self.last_sender
        cdef int64_t timeout_ns = timeout_to_ns(timeout)
        try:
            return self.await_ready(timeout_ns, deadline_of(timeout_ns)) is not None
        except EndOfStreamError:
            return True
        except PeerLostError as error:
            self.over[error.rank] = False      # to be reported by the next call
            return True
        finally:
            self.turn, self.last_sender = turn, last_sender

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.recv()
        except EndOfStreamError:
            raise StopIteration from None

    def __aiter__(self):
        return self

    def __anext__(self):
        return next_of(self)

    # ---- state ----

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

    def __reduce__(self):
        cdef RingReceiver receiver
        ends = []
        for receiver in self.receivers:
            require_unused(receiver)
            ends.append(receiver.own_end)
        passed = receiver.prospects.pass_on(ends)
        for receiver in self.receivers:
            receiver.leave_prospects()
        return _arrived, (passed, self.rings)

    def __repr__(self):
        return f"<shmring.FanInReceiver of {self.count} senders{', closed' if self.is_closed else ''}>"


def _arrived(passed, rings):
    """The receiver that another process has passed on."""
    cdef FanInReceiver arrived = FanInReceiver(rings)
    (<RingReceiver>arrived.receivers[0]).prospects.adopt(passed)
    return arrived
