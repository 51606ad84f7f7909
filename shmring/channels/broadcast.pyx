"""The sender of a broadcast: what it writes once, many receive, each at its own pace."""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t

from typing import NamedTuple

from shmring._c.atomics cimport load_acquire_u64
from shmring._c.layout cimport shmring_ring
from shmring.base.timeouts cimport timeout_to_ns
from shmring.channels.broadcast_rings cimport BroadcastRings, cursor_t
from shmring.channels.endpoint cimport DISCONNECTED, deadline_of, left_until
from shmring.channels.format cimport SLOW_WAITS
from shmring.channels.message_codec cimport QUIET_MAX, encode, encode_pickled, message_t, pickle_object
from shmring.channels.message_writer cimport MessageWriter, put_bytes
from shmring.channels.record_sender cimport RecordSender, one_record, records_of
from shmring.channels.sender cimport Sender, as_shape
from shmring.ring.blocking cimport LATE
from shmring.ring.overwrite cimport position_of
from shmring.ring.spsc cimport ring_end_state
from shmring.sync.group cimport READY

from shmring.ring.spsc import END_STATES


class Follower(NamedTuple):
    """State of one receiver of a broadcast.

    Attributes
    ----------
    state : str
        ``"absent"``, ``"here"``, ``"closed"``, ``"lost"``; or ``"disconnected"``, by this sender.
    pid : int
    behind : float
        How much of the capacity it has still to read, from 0 to 1.
    dropped_count : int
        Messages that were overwritten before it received them.
    """

    state: str
    pid: int
    behind: float
    dropped_count: int


@cython.final
@cython.no_gc
cdef class BroadcastSender(BroadcastRings):
    """The sending end of a broadcast; made by `shmring.broadcast_channel`.

    Belongs to the process that uses it first, and to one thread at a time. Receivers that close or die are left behind.
    """

    # ---- sending ----

    @cython.critical_section
    def send(self, x, timeout=None):
        """Send bytes or an array to all receivers; or, in a broadcast of records, one record.

        Parameters
        ----------
        x : bytes-like or array; or record
            As in `Sender.send`, or `RecordSender.send`. With ``when_slow="wait"`` of any size, else at most half the
            capacity.
        timeout : float, optional
            Seconds to wait for room, which is that of the slowest receiver; None for ever, 0 not at all.

        Returns
        -------
        int
            To how many receivers: those not taken yet are counted, those that are gone are not.

        Raises
        ------
        queue.Full
            No room in time. No receiver gets anything of this message.
        PeerLostError
            All receivers are gone.
        TypeError, ValueError
            As in `Sender.send`. Nothing was sent.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout)
        self.prepare()
        if self.rings.dtype is not None:
            if not self.send_records(one_record(x, self.rings.dtype), timeout_ns):
                raise self.full()
        elif self.send_one(x, timeout_ns) == LATE:
            raise self.full()
        return self.announce_to_all()

    cdef int send_one(self, object x, int64_t timeout_ns) except -1:
        cdef message_t m
        if PyBytes_CheckExact(x) and put_bytes(<MessageWriter>self.sender, x):
            return READY
        _keeper = encode(x, &m)
        return self.send_message(&m, timeout_ns)

    cdef int send_message(self, message_t *m, int64_t timeout_ns) except -1:
        """Send through the first ring; when it is full, announce what is in it, and make room. READY or LATE."""
        cdef MessageWriter writer = self.sender
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef uint64_t wanted = 0
        cdef bint must_be_whole = self.when_slow != SLOW_WAITS
        # In one piece if there is room for that now, even if it may be streamed.
        if not must_be_whole and m.load.nbytes <= writer.longest and writer.advance(m, True, &wanted) == READY:
            return READY
        try:
            while writer.advance(m, must_be_whole, &wanted) == LATE:
                self.announce_to_all()
                if self.make_room(wanted, left_until(deadline_ns, timeout_ns)) == LATE:
                    return LATE
            return READY
        finally:
            writer.end_send(m)

    @cython.critical_section
    def send_object(self, obj, timeout=None):
        """Send a Python object to all receivers, by pickle as `Sender.send_object`.

        Parameters
        ----------
        obj : object
            Anything that pickles.
        timeout : float, optional
            As in `send`.

        Returns
        -------
        int
            As in `send`.

        Raises
        ------
        ObjectError
            It does not pickle. Nothing was sent.
        queue.Full, PeerLostError, ValueError
            As in `send`.
        """
        cdef message_t m
        cdef int64_t timeout_ns = timeout_to_ns(timeout)
        self.prepare()
        _keeper = encode_pickled(pickle_object(obj, self.sender.channel), &m)
        if self.send_message(&m, timeout_ns) == LATE:
            raise self.full()
        return self.announce_to_all()

    @cython.critical_section
    def try_send(self, x):
        """Send if there is room for all of it now. Raises as `send`.

        Parameters
        ----------
        x : bytes-like or array; or record
            As in `send`; at most half the capacity.

        Returns
        -------
        bool
            False if there is no room; nothing was sent then.
        """
        cdef bint is_sent
        self.prepare()
        if self.rings.dtype is not None:
            is_sent = self.send_records(one_record(x, self.rings.dtype), 0) == 1
        else:
            is_sent = self.send_one(x, 0) == READY
        return self.announce_to_all() > 0 and is_sent

    @cython.critical_section
    def send_many(self, messages, timeout=None):
        """Send several messages, announced together as far as there is room; or records, as one array.

        Raises as `send`; the messages before the one concerned were sent.

        Parameters
        ----------
        messages : iterable of bytes-like or array; or array of records
        timeout : float, optional
            Seconds to wait for room in all; None for ever, 0 not at all.

        Returns
        -------
        int
            How many went in, from the first one on; fewer than there are only if time ran out.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef int count = 0
        self.prepare()
        if self.rings.dtype is not None:
            return self.send_records(records_of(messages, self.rings.dtype), timeout_ns)
        try:
            for x in messages:
                if self.send_one(x, left_until(deadline_ns, timeout_ns)) == LATE:
                    break
                count += 1
                if count % QUIET_MAX == 0:
                    self.announce_to_all()
                    PyErr_CheckSignals()
        finally:
            self.announce_to_all()
        return count

    cdef int64_t send_records(self, array, int64_t timeout_ns) except -1:
        """How many were sent, in the order of the array's elements."""
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef uint64_t done = 0, count = array.size
        array = array.reshape(-1)
        while True:
            done += <uint64_t>self.sender.send_many(array[done:], 0)
            self.announce_to_all()
            if done == count or self.make_room(min(count - done, max(<uint64_t>1, self.sender.ring.nslots // 4)),
                                               left_until(deadline_ns, timeout_ns)) == LATE:
                return done

    @cython.critical_section
    def reserve(self, shape=1, dtype=None, timeout=None):
        """Lease memory of the ring, to write in place what all receivers get. Raises as `Sender.reserve`.

        Parameters
        ----------
        shape : int or tuple of int
            Of the array to write; in a broadcast of records how many, at most.
        dtype : dtype, optional
            None: bytes. Not for records.
        timeout : float, optional
            As in `send`.

        Returns
        -------
        Lease
            Until `commit` or `abort`.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef uint64_t wanted = 1
        cdef int outcome
        self.prepare()
        if self.rings.dtype is None:
            shape = as_shape(shape)
        while True:
            if self.rings.dtype is None:
                outcome = (<Sender>self.sender).try_reserve(shape, dtype, &wanted)
            else:
                outcome = (<RecordSender>self.sender).try_reserve(shape)
            if outcome == READY:
                return self.sender.lease
            if self.make_room(wanted, left_until(deadline_ns, timeout_ns)) == LATE:
                raise self.full()

    @cython.critical_section
    def commit(self, count=None):
        """Send what was reserved, and end the lease. Raises as `Sender.commit`.

        Parameters
        ----------
        count : int, optional
            Only the first so many along the first axis.

        Returns
        -------
        int
            As in `send`.
        """
        self.sender.commit(count)
        return self.announce_to_all()

    @cython.critical_section
    def abort(self):
        """Give up what was reserved, and end the lease; nothing is sent. Raises as `Sender.commit`."""
        self.sender.abort()

    # ---- state ----

    @property
    @cython.critical_section
    def receivers(self):
        """State of each receiver: state, pid, how far behind, how much it missed."""
        cdef cursor_t *c
        cdef shmring_ring *ring
        cdef uint64_t head
        cdef int i
        found = []
        self.prepare()
        for i in range(self.count):
            c = &self.cursors[i]
            ring = c.p.ring
            head = position_of(ring, load_acquire_u64(&ring.head))
            state = END_STATES[ring_end_state(c.watch.other)]
            if ring.producer.closed == DISCONNECTED:
                state = "disconnected"
            found.append(Follower(state, c.watch.other.liveness.pid, (c.p.tail - head) / c.p.capacity,
                                  ring.sent.overwritten))
        return found

    @property
    @cython.critical_section
    def sent_count(self):
        """Messages ever sent."""
        return self.sender.ring.sent.messages

    @property
    @cython.critical_section
    def dropped_count(self):
        """Messages that were overwritten before a receiver received them, all receivers together."""
        return sum([follower.dropped_count for follower in self.receivers])

    @property
    def capacity_nbytes(self):
        """Size of the ring in bytes, headers included."""
        return self.sender.ring.nslots * self.sender.ring.slot_nbytes

    def __reduce__(self):
        self.sender.__reduce__()           # raises if it was used
        return BroadcastSender, (self.rings,)

    def __repr__(self):
        return f"<shmring.BroadcastSender to {self.count} receivers{', closed' if self.is_closed else ''}>"
