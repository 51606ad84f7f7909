"""The sending and the receiving end of the ring of a channel: the base classes of ends of messages and of records.

A broadcast is a ring with several heads: its sender is that of a channel, for which a slot is free when the last
receiver has released it. When there is no room, one mechanism serves channels and broadcasts (`RingSender.make_room`):
wait for the receiver that leaves none, drop the new message, or disconnect that receiver after a time.

A receiver that is disconnected may be reading just then, and what it reads is overwritten. So where this can happen, a
receiver first copies a message out of the ring, then checks that it was not disconnected, and only then uses the copy.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

import os
import queue
import weakref
from functools import partial
from types import GenericAlias
from typing import NamedTuple

from shmring.core.c.atomics cimport compare_swap_u32, full_fence, load_acquire_u32, load_acquire_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport shmring_ring_head
from shmring.core.base.timeouts cimport timeout_to_ns
from shmring.core.memory.mapping cimport Mapping
from shmring.core.ring.blocking cimport GONE, LATE, awaited_t, wake_at_once, wake_sleeper
from shmring.core.ring.end cimport take_role
from shmring.core.ring.prospects cimport prospects_of
from shmring.core.ring.spsc cimport (
    END_ABSENT, END_CLOSED, END_LOST, ROLE_DISCONNECTED, ROLE_LEFT, ring_control_nbytes, ring_end_state,
)
from shmring.core.sync.backoff cimport before_wake
from shmring.core.sync.group cimport READY
from shmring.core.sync.notifier cimport Notifier

from shmring.channels.aio import next_of, readable
from shmring.channels.memory import POLICIES, ChannelMemory
from shmring.errors import DisconnectedError, EndOfStreamError, PeerLostError, SegmentError
from shmring.core.ring.end import OTHER_ROLES
from shmring.core.ring.spsc import END_STATES


class Follower(NamedTuple):
    """State of one receiver.

    Attributes
    ----------
    state : str
        ``"absent"``, ``"here"``, ``"closed"``, ``"lost"``; or ``"disconnected"``, by this sender.
    pid : int
    behind : float
        The part of the capacity that it has not read yet, from 0 to 1.
    """

    state: str
    pid: int
    behind: float


# ---- both ends -------------------------------------------------------------------------------------------------------

cdef int place_in(RingEnd end, object channel, object role, str own) except -1:
    """Place an end at the ring in a channel's memory."""
    cdef Mapping mapping
    cdef size_t offset
    if not isinstance(channel, ChannelMemory) or role != own:
        raise TypeError(f"{type(end).__name__}({channel!r}, {role!r}): ends are made by the calls for channels")
    mapping = channel.mapping
    offset = min(<size_t>channel.ring_offset, mapping.nbytes)
    end.expected_nbytes = 8 if channel.dtype is None else channel.dtype.itemsize
    end.owned_by_lock = channel.owned_by_lock
    end.watch.spin_ns, end.watch.tick_ns = channel.spin_ns, channel.tick_ns
    end.place(mapping, mapping.address + offset, mapping.nbytes - offset, own)
    end.watch.writes_notes = channel.writes_notes
    if channel.key is None and not end.owned_by_lock:
        sender, receiver = 0, 2 * <int>channel.number + 1
        end.join_prospects(prospects_of(channel.memory, 2 * channel.nreceivers),
                           sender if end.is_producer else receiver, receiver if end.is_producer else sender)
    if end.is_producer:
        return 0
    if <size_t>channel.number * sizeof(shmring_ring_head) > end.ring_nbytes - ring_control_nbytes():
        raise SegmentError(f"{channel.title} is corrupted: its memory has no room for so many receivers")
    end.watch_consumer(channel.number)
    return 0


cdef int take_in(RingEnd end, object channel) except? -1:
    """Take an end under the lock of the name, if there is one."""
    cdef int code
    processors = None if end.owned_by_lock else os.sched_getaffinity(0)
    only = 1 + min(processors) if processors is not None and len(processors) == 1 else 0
    with channel.taking() as again:
        code = take_role(end, again)
        if not code and not end.owned_by_lock:
            end.watch.own.only = only
    return code


cdef object descriptor_of(RingEnd end):
    if end.notifier is not None:
        end.require_open()
    else:
        end.prepare()
        end.notifier = Notifier(sizeof(awaited_t))
        end.watch.notice = &end.notifier.notice
    return end.notifier.notice.descriptor


cdef int require_unused(RingEnd end) except -1:
    if end.is_taken or end.is_closed:
        raise TypeError(f"this {end.role} belongs to process {os.getpid()} or is closed: only an end that was never "
                        "used can be pickled")
    return 0


cdef tuple reduced(RingEnd end, object channel):
    require_unused(end)
    if end.prospects is None:
        return type(end), (channel, end.role)
    cdef Passage passage = Passage.__new__(Passage)
    passage.end = end
    return _arrived, (type(end), channel, end.role, passage)


@cython.final
cdef class Passage:
    """The way of an end to another process. It is pickled after the memory: where that is refused, the end stays."""
    cdef RingEnd end

    def __reduce__(self):
        if self.end is None:
            raise TypeError("made when an end is pickled")
        passed = self.end.prospects.pass_on([self.end.own_end], partial(_come_back, weakref.ref(self.end)))
        self.end.leave_prospects()
        return _itself, (passed,)


def _itself(passed):
    return passed


def _come_back(reference):
    """This process may take an end again: the one to which it was passed did not start."""
    cdef RingEnd end = reference()
    if end is not None and not end.is_taken and not end.is_closed and not end.is_prospect:
        end.join_prospects(end.prospects, end.own_end, end.watch.awaited_end)


def _arrived(kind, channel, role, passed):
    """An end that another process has passed on."""
    cdef RingEnd arrived = kind(channel, role)
    if type(passed) is Passage:        # copied in this process, not pickled
        _, (passed,) = passed.__reduce__()
    arrived.prospects.adopt(passed)
    return arrived


cdef int leave_channel(RingEnd end, object channel, bint in_good_order) except -1:
    if not end.is_closed:
        RingEnd.close_end(end, in_good_order)
        channel.leave()
        if end.prospects is not None:
            end.prospects.forget_arrived()
    return 0


cdef object lost(RingEnd end, object channel):
    """The error that the other end is gone."""
    pid = end.watch.other.liveness.pid
    other, state = OTHER_ROLES[end.role], ring_end_state(end.watch.other)
    if state == END_ABSENT:
        return PeerLostError(f"no process has taken the {other} of {channel.title}, and none can: those that it was "
                             "passed to have ended or dropped it", -1, 0)
    how = "died or left without close()"
    if state == END_CLOSED:
        how = "has closed it"
    elif end.watch.other.closed == ROLE_DISCONNECTED:
        how = "was disconnected, as it left no room"
    return PeerLostError(f"the {other} of {channel.title}, process {pid}, {how}", -1, pid)


# ---- sending ---------------------------------------------------------------------------------------------------------

@cython.no_gc
cdef class RingSender(RingEnd):
    """The sending end of the ring of a channel."""

    def __cinit__(self, channel, role):
        place_in(self, channel, role, "sender")
        self._channel = channel
        self.policy = POLICIES.index(channel.when_full)
        self.is_broadcast = channel.is_broadcast
        self.slow_ns = channel.slow_ns

    cdef object title(self):
        return self._channel.title if self._channel is not None else "this channel"

    cdef int attached(self) except? -1:
        return take_in(self, self._channel)

    cdef int close_end(self, bint in_good_order) except -1:
        return leave_channel(self, self._channel, in_good_order)

    def __reduce__(self):
        return reduced(self, self._channel)

    # ---- receivers ----

    cdef int receivers_left(self) noexcept nogil:
        """The number of receivers that have not closed or died, ends not taken yet included."""
        cdef uint64_t i
        cdef int left = 0
        for i in range(self.p.nheads):
            left += not ring_is_gone(&self.ring.heads[i].consumer)
        return left

    cdef int require_receiver(self) except -1:
        if not has_receiver(self):
            raise self.peer_lost()
        return 0

    cdef object reached(self):
        """The result of sending: True, or in a broadcast the number of receivers."""
        return self.receivers_left() if self.is_broadcast else True

    cdef object peer_lost(self):
        if self.p.nheads == 1:
            return lost(self, self._channel)
        return PeerLostError(f"all {self.p.nheads} receivers of this broadcast are closed or dead, or were "
                             "disconnected", -1, self.ring.heads[0].consumer.liveness.pid)

    cdef void wake_receivers(self) noexcept nogil:
        """Wake each receiver that sleeps until the slots just committed."""
        cdef shmring_ring_head *at
        cdef uint64_t i
        before_wake()
        for i in range(self.p.nheads):
            at = &self.ring.heads[i]
            wake_sleeper(&at.consumer.waiter.asleep, &at.consumer.waiter.wake, self.p.tail)

    @property
    @cython.critical_section
    def receivers(self):
        """State of each receiver, as a list: its state, pid, and unread part of the ring."""
        cdef shmring_ring_head *at
        cdef uint64_t i, head, tail
        self.require_open()
        if not self.is_taken:
            self.prepare()
        found, tail = [], load_acquire_u64(&self.ring.tail)
        for i in range(self.p.nheads):
            at = &self.ring.heads[i]
            head = load_acquire_u64(&at.head)
            state = END_STATES[ring_end_state(&at.consumer)]
            if at.consumer.closed == ROLE_DISCONNECTED:
                state = "disconnected"
            found.append(Follower(state, at.consumer.liveness.pid, min(1.0, <double>(tail - head) / self.p.capacity)))
        return found

    # ---- room ----

    cdef int make_room(self, uint64_t least, uint64_t most, int64_t timeout_ns) except -1:
        """READY once ``least`` slots are free, or may be; LATE; or DROPPED, for this message.

        An awaited receiver wakes this end when ``most`` are free.
        """
        cdef int64_t slow_ns = 0 if self.is_overdue else self.slow_ns
        cdef bint disconnects = slow_ns >= 0 and (timeout_ns < 0 or slow_ns <= timeout_ns)
        cdef int64_t deadline_ns
        cdef uint64_t i, head
        cdef int outcome
        self.is_overdue = False
        if disconnects:
            timeout_ns = slow_ns
        deadline_ns = deadline_of(timeout_ns)
        least = min(least, self.p.capacity)
        most = max(least, min(most, self.p.capacity))
        for i in range(self.p.nheads):
            while not ring_is_gone(&self.ring.heads[i].consumer):
                # SYNC drained (meets: ring_release in core/ring/spsc.pxd).
                head = load_acquire_u64(&self.ring.heads[i].head)
                if self.p.tail - head > self.p.capacity:
                    raise self.corrupt()
                if self.p.capacity - (self.p.tail - head) >= least:
                    break
                if self.policy == DROPS_NEWEST:
                    self.ring.sent.dropped += 1
                    return DROPPED
                outcome = self.await_receiver(i, least, most, left_until(deadline_ns, timeout_ns))
                if outcome == LATE:
                    if not disconnects:
                        return LATE
                    self.disconnect(i)
        self.require_receiver()
        return READY

    cdef void disconnect(self, uint64_t number) noexcept:
        """Disconnect a receiver: it gets nothing more, and no slot is kept for it."""
        cdef shmring_ring_head *at = &self.ring.heads[number]
        # SYNC disconnected (meets: is_cut_off). The receiver may be reading slots: they are overwritten after the full
        # fence of before_wake.
        compare_swap_u32(&at.consumer.closed, 0, ROLE_DISCONNECTED)
        fault_point("disconnected")
        before_wake()
        wake_at_once(&at.consumer.waiter.asleep, &at.consumer.waiter.wake)

    cdef int await_receiver(self, uint64_t number, uint64_t least, uint64_t most, int64_t timeout_ns) except -1:
        """READY: a receiver has released enough slots, or is gone; or LATE."""
        cdef shmring_ring_head *at = &self.ring.heads[number]
        cdef uint64_t base = self.p.tail - self.p.capacity
        cdef bint was_busy = self.is_busy          # in the middle of a streamed message
        cdef int outcome
        if number != self.number:
            self.watch_consumer(number)
        outcome = self.wait_for(&at.head, base + least, base + most, timeout_ns)
        self.is_busy = was_busy
        if outcome != GONE:
            return outcome
        if self.p.nheads == 1:
            raise self.peer_lost()
        compare_swap_u32(&at.consumer.closed, 0, ROLE_LEFT)      # not every death marks the liveness word
        return READY

    async def _room(self):
        """Await room in an event loop. The next step disconnects receivers that have left none for too long."""
        import asyncio

        try:
            await asyncio.wait_for(readable(self), None if self.slow_ns < 0 else self.slow_ns / 1e9)
        except asyncio.TimeoutError:
            self.is_overdue = True

    cdef object full(self):
        """The error that there is no room in time."""
        if not self.is_broadcast:
            return queue.Full(f"no room in time: {self.taken_nbytes()} bytes of {self.title()} are taken by what was "
                              "not received yet")
        pid = self.watch.other.liveness.pid
        return queue.Full(f"no room for this message: receiver {self.number} (process {pid}) has not taken earlier "
                          "ones")

    cdef object taken_nbytes(self):
        cdef uint64_t used = self.p.tail - load_acquire_u64(&self.ring.heads[0].head)
        return f"{used * self.p.slot_nbytes} of {self.p.capacity * self.p.slot_nbytes}"

    @cython.critical_section
    def abort(self):
        """Give up the reserved memory, and end the lease; nothing is sent. Raises as `commit`."""
        self.give_up_lease()

    # ---- state ----

    @cython.critical_section
    def fileno(self):
        """A descriptor for ``select``, ``poll``, ``epoll`` and event loops: readable when there may be room.

        Returns
        -------
        int
            An eventfd, readable when there may be room for the message that found none, or the receiver is gone. It
            stays readable until a call with ``timeout=0`` (`try_send`) finds no room, so repeat such calls until then.
            It closes with this end.

        Notes
        -----
        After the first call a thread of this process waits in place of this end: one for all ends with a descriptor.
        """
        return descriptor_of(self)

    @property
    def name(self):
        """The name it was opened by."""
        return self._channel.key

    @property
    def when_full(self):
        """What sending does when there is no room: ``wait`` or ``drop_newest``."""
        return self._channel.when_full

    @property
    @cython.critical_section
    def sent_count(self):
        """Messages, or records, ever sent into this channel."""
        return self.ring.sent.messages

    @property
    @cython.critical_section
    def dropped_count(self):
        """Messages, or records, ever dropped because they found no room."""
        return self.ring.sent.dropped

    def __bool__(self):
        return True                # an end without messages is one, too

    @cython.critical_section
    def __len__(self):
        """Messages, or records, sent and not yet received by the slowest receiver, which may change at any time."""
        cdef uint64_t i
        cdef int64_t most = 0
        for i in range(max(self.p.nheads, <uint32_t>1)):
            most = max(most, <int64_t>(self.ring.sent.messages - self.ring.heads[i].received.messages))
        return most

    def __repr__(self):
        state = ", closed" if self.is_closed else ""
        if self.is_taken and not self.is_broadcast:        # also in the note of a long wait
            state = f", {self.taken_nbytes()} bytes taken"
            if self.is_busy and self.unsent_nbytes:
                state += f", to send {self.unsent_nbytes} bytes"
        return f"<shmring.{type(self).__name__} of {self._channel.title}{state}>"


# ---- receiving -------------------------------------------------------------------------------------------------------

@cython.no_gc
cdef class RingReceiver(RingEnd):
    """The receiving end of the ring of a channel. Iterating over it ends when the sender has closed."""

    __class_getitem__ = classmethod(GenericAlias)

    def __cinit__(self, channel, role):
        place_in(self, channel, role, "receiver")
        self._channel = channel
        self.checks_copies = channel.slow_ns >= 0

    cdef object title(self):
        return self._channel.title if self._channel is not None else "this channel"

    cdef int attached(self) except? -1:
        return take_in(self, self._channel)

    cdef int close_end(self, bint in_good_order) except -1:
        return leave_channel(self, self._channel, in_good_order)

    def __reduce__(self):
        return reduced(self, self._channel)

    cdef bint has_next(self, int64_t deadline_ns) except -1:
        """Whether a call would return a message, or raise an error, without waiting.

        Of a message that comes in pieces, take those that come until the deadline; 0: all that are there.
        """
        raise NotImplementedError

    cdef bint has_pieces(self) except -1:
        """After `has_next` was False: whether more pieces of a message are there, for which its time was too short."""
        return False

    @cython.critical_section
    def look_ahead(self, timeout=0):
        """Look for the next message without waiting.

        Parameters
        ----------
        timeout : float, optional
            Seconds to take pieces of a long message that are there; 0: all of them.

        Returns
        -------
        bool or Exception
            Whether there is one; or the error that none can come any more.
        """
        cdef int state
        self.require_idle()
        state = self.peer_state()      # first: messages sent before the sender left are not lost
        if self.has_next(deadline_of(timeout_to_ns(timeout))):
            return True
        if (state != END_CLOSED and state != END_LOST) or self.has_pieces():
            return False
        return self.stream_over()

    cdef int wait_for_tail(self, int64_t timeout_ns) except -1:
        if self.is_cut_off():
            return GONE                # the tail goes on without this receiver
        return self.wait_for(&self.ring.tail, self.c.head + 1, self.c.head + 1, timeout_ns)

    cdef void fill_in(self, awaited_t *a) noexcept:
        """Fill in the counter for which `wait_for_tail` waits, for a wait at several rings."""
        a.watch, a.counter, a.until, a.wake_at = &self.watch, &self.ring.tail, self.c.head + 1, self.c.head + 1

    cdef bint is_cut_off(self) noexcept:
        """Whether the sender has disconnected this end, so that a copy just made may be of overwritten slots."""
        if not self.checks_copies:
            return False
        full_fence()       # the copy before the look
        # SYNC disconnected (meets: disconnect).
        return load_acquire_u32(&self.c.own.consumer.closed) == ROLE_DISCONNECTED

    cdef object peer_lost(self):
        if self.is_cut_off():
            pid = self.watch.other.liveness.pid
            return DisconnectedError(f"process {pid} has disconnected this receiver of {self._channel.title}, which "
                                     f"left no room for {self._channel.slow_ns / 1e9:g} s: what it had not received is "
                                     "lost", -1, pid)
        return lost(self, self._channel)

    cdef object stream_over(self):
        """The error that no further message can come."""
        if self.peer_state() == END_CLOSED:
            return EndOfStreamError(f"the sender of {self._channel.title} has closed it, and all was received")
        return self.peer_lost()

    def try_recv(self, default=None):
        """Receive the next message, or record, if there is one. Raises as `recv`.

        Parameters
        ----------
        default : object
            The result if there is none.

        Returns
        -------
        object
            As `recv` returns.
        """
        try:
            return self.recv(0)
        except queue.Empty:
            return default

    @cython.critical_section
    def poll(self, timeout=0):
        """Whether `recv` would return or raise without waiting.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for that; None for ever.

        Returns
        -------
        bool
            Also True at the end of the stream, and if the sender is lost: `recv` then raises.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns), left_ns
        cdef int outcome
        self.require_idle()
        while not self.has_next(deadline_ns):
            left_ns = left_until(deadline_ns, timeout_ns)
            outcome = self.wait_for_tail(left_ns)
            if outcome != READY:
                return outcome == GONE
            if left_ns == 0 and timeout_ns > 0:
                return self.has_next(deadline_ns)      # what is there is one more piece, or a message
        return True

    @property
    @cython.critical_section
    def ended(self):
        """Whether the sender has closed in good order and all was received: `recv` would raise `EndOfStreamError`."""
        return isinstance(self.look_ahead(), EndOfStreamError)

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

    @cython.critical_section
    def fileno(self):
        """A descriptor for ``select``, ``poll``, ``epoll`` and event loops: readable when a message may have come.

        Returns
        -------
        int
            An eventfd, readable when a message may have come, or the sender is gone. It stays readable until a call
            with ``timeout=0`` (`try_recv`, `poll`) finds no message, so repeat such calls until then. It closes with
            this end.

        Notes
        -----
        After the first call a thread of this process waits in place of this end: one for all ends with a descriptor.
        """
        return descriptor_of(self)

    @property
    def name(self):
        """The name it was opened by."""
        return self._channel.key

    @property
    def when_full(self):
        """What sending does when there is no room: ``wait`` or ``drop_newest``."""
        return self._channel.when_full

    @property
    @cython.critical_section
    def received_count(self):
        """Messages, or records, ever received from this channel by this end."""
        return self.watch.counts.messages

    @property
    @cython.critical_section
    def dropped_count(self):
        """Messages, or records, ever dropped because they found no room."""
        return self.ring.sent.dropped

    def __bool__(self):
        return True                # an end without messages is one, too

    @cython.critical_section
    def __len__(self):
        """Messages, or records, sent and not yet received, which the other end may change at any time."""
        return max(0, <int64_t>(self.ring.sent.messages - self.watch.counts.messages))

    def __repr__(self):
        return f"<shmring.{type(self).__name__} of {self._channel.title}{', closed' if self.is_closed else ''}>"
