"""The sender of a broadcast: what it writes once, many read, each at its own pace.

The rings of a broadcast have the same slots. The first is an ordinary ring that this process alone uses: an ordinary
sender writes through it. What it has committed is then announced in the ring of each receiver, which for the receiver
is a ring like any other; and the first ring's `head`, which says what may be overwritten, is the hindmost of theirs. So
there is one copy of each message, however many receive it, and all that is promised of a ring is promised of each.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import queue
from typing import NamedTuple

import numpy as np

from shmring._c.atomics cimport load_acquire_u64, load_relaxed_u64, store_relaxed_u64, store_release_u32, store_release_u64
from shmring.channels.endpoint cimport DISCONNECTED, End, is_gone, timeout_of
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport shmring_ring
from shmring.sync.liveness cimport drop_liveness, fork_generation
from shmring.memory.mapping cimport Mapping
from shmring.ring.overwrite cimport overwrite_frames, overwrite_slots
from shmring.ring.spsc cimport producer_t, ring_attach_producer, ring_close_producer, ring_commit, ring_end_state
from shmring.ring.blocking cimport GONE, LATE, await_counter, wake_peer, wake_peer_at_once, watch_t
from shmring.sync.backoff cimport be_patient, now_ns, patience_t
from shmring.sync.group cimport UNREADY

from shmring.ring.spsc import END_STATES
from shmring.errors import PeerLostError, SegmentError
from shmring.channels.records import RecordSender
from shmring.channels.sender import Sender

cdef enum:                     # what is done about a receiver without room, in the order of branches.WHEN_SLOW
    WAITS = 0
    OVERWRITES = 1
    DISCONNECTS = 2

MODES = {"wait": WAITS, "drop_oldest": OVERWRITES, "disconnect": DISCONNECTS}

cdef enum:
    TOP_BIT = 63               # of head: one message is being read
    QUIET_MAX = 64             # messages put in before they are announced together


class Follower(NamedTuple):
    """How one receiver of a broadcast stands.

    Attributes
    ----------
    state : str
        ``"absent"``, ``"here"``, ``"closed"``, ``"lost"``; or ``"disconnected"``, by this sender.
    pid : int
    behind : float
        How much of the capacity it has still to read, from 0 to 1.
    dropped_count : int
        Messages that it was too slow for.
    """

    state: str
    pid: int
    behind: float
    dropped_count: int


ctypedef struct cursor_t:
    producer_t p
    watch_t watch
    bint is_over               # gone, or disconnected


@cython.final
@cython.no_gc
cdef class BroadcastSender:
    """The sending end of a broadcast; made by `shmring.broadcast_channel`.

    Belongs to the process that uses it first, and to one thread at a time. Receivers that close or die are left behind.
    """

    cdef readonly object fan
    cdef object master             # the ordinary sender through the first ring
    cdef End end                   # the same
    cdef cursor_t *cursors
    cdef int count, mode
    cdef bint has_dtype
    cdef uint32_t generation
    cdef bint is_taken

    def __cinit__(self, fan):
        self.fan = fan
        self.count = fan.count
        self.mode = MODES[fan.when_slow]
        self.has_dtype = fan.dtype is not None
        self.master = (RecordSender if self.has_dtype else Sender)(fan.branch(0), "sender")
        self.end = self.master
        self.cursors = <cursor_t *>calloc(self.count, sizeof(cursor_t))
        if self.cursors == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.is_taken and self.generation == fork_generation():
            self.leave(False)
        free(self.cursors)

    # ---- belonging ----

    def take(self):
        """Make this end belong to this process now, instead of at its first use. Returns itself; raises as
        `Sender.take`."""
        self.prepare()
        return self

    cdef int prepare(self) except -1:
        cdef Mapping mapping = self.end.mapping
        cdef cursor_t *c
        cdef size_t offset
        cdef int i, code
        self.end.require_idle()
        if self.is_taken:
            return 0
        self.generation = fork_generation()
        self.is_taken = True
        for i in range(self.count):
            c = &self.cursors[i]
            offset = <size_t>self.fan.branch(i + 1).ring_offset
            code = ring_attach_producer(&c.p, mapping.address + offset, mapping.nbytes - offset)
            if code:
                c.is_over = True
                raise SegmentError(f"ring {i + 1} of this broadcast cannot be had: {code}")
            c.watch = self.end.watch
            c.watch.own = &c.p.ring.producer
            c.watch.other = &c.p.ring.consumer
            c.watch.waiter = &c.watch.own.waiter
            c.watch.peer = &c.watch.other.waiter
            c.watch.wake = &c.watch.peer.wake
            c.watch.counts = &c.p.ring.sent
        return 0

    # ---- from the first ring to the others, and back ----

    cdef int relay(self) except -1:
        """Announce in each ring what was committed through the first; how many go on."""
        cdef uint64_t tail = load_relaxed_u64(&self.end.ring.tail)
        cdef cursor_t *c
        cdef int i, going = 0
        for i in range(self.count):
            c = &self.cursors[i]
            if c.is_over:
                continue
            if is_gone(c.watch.other):
                c.is_over = True
                continue
            going += 1
            fault_point("relay")
            store_relaxed_u64(&c.p.ring.sent.messages, load_relaxed_u64(&self.end.ring.sent.messages))
            c.p.reserved = tail - c.p.tail
            ring_commit(&c.p, c.p.reserved)
            wake_peer(&c.watch, tail)
        if not going:
            raise PeerLostError(f"all {self.count} receivers of this broadcast are gone", -1,
                                self.cursors[0].watch.other.life.pid)
        return going

    cdef int look_at(self, cursor_t *c) except -1:
        """See how far a receiver has come."""
        # SYNC drained (meets: ring_release in ring/spsc.pxd). With the top bit: it is reading the message from there on.
        cdef uint64_t head = load_acquire_u64(&c.p.ring.head)
        if c.p.ring.drops:
            head &= ~(<uint64_t>1 << TOP_BIT)
        if c.p.tail - head > c.p.capacity:
            raise SegmentError("what a receiver wrote into this broadcast cannot be; nothing was written")
        c.p.cached_head = head
        return 0

    cdef int make_room(self, uint64_t wanted, int64_t timeout_ns) except -1:
        """See to it that so many slots are free in the first ring; raises ``queue.Full``."""
        cdef int64_t started = now_ns() if timeout_ns > 0 else 0, left = timeout_ns
        cdef uint64_t behind = 0
        cdef cursor_t *c
        cdef int i
        wanted = min(wanted, self.cursors[0].p.capacity)
        for i in range(self.count):
            c = &self.cursors[i]
            while not c.is_over:
                self.look_at(c)
                if c.p.capacity - (c.p.tail - c.p.cached_head) >= wanted or self.overwrite(c, wanted):
                    break
                if timeout_ns > 0:
                    left = max(<int64_t>0, timeout_ns - (now_ns() - started))
                self.await_receiver(i, wanted, left)
            if not c.is_over:
                behind = max(behind, c.p.tail - c.p.cached_head)
        # SYNC drained (meets: ring_free in ring/spsc.pxd): whatever the last of them has released, all have.
        store_release_u64(&self.end.ring.head, load_relaxed_u64(&self.end.ring.tail) - behind)
        return 0

    cdef bint overwrite(self, cursor_t *c, uint64_t wanted) except -1:
        """Where that is the way: give up what a slow receiver has not read, or the receiver. False: it is reading
        it."""
        cdef uint64_t *overwritten = &c.p.ring.sent.overwritten
        cdef int found
        if self.mode == WAITS:
            return False
        if self.mode == DISCONNECTS:
            wanted = c.p.capacity
        found = overwrite_slots(&c.p, wanted, overwritten) if self.has_dtype else overwrite_frames(&c.p, wanted, overwritten)
        if found < 0:
            raise SegmentError("what a receiver wrote into this broadcast cannot be; nothing was written")
        if found and self.mode == DISCONNECTS:
            c.is_over = True
            store_release_u32(&c.p.ring.producer.closed, DISCONNECTED)
            drop_liveness(&c.p.ring.producer.life)
            wake_peer_at_once(&c.watch)
        return found

    cdef int await_receiver(self, int i, uint64_t wanted, int64_t timeout_ns) except -1:
        """Until it has gone on far enough, or is gone."""
        cdef cursor_t *c = &self.cursors[i]
        cdef uint64_t until = c.p.tail + wanted - c.p.capacity, wake_at
        cdef patience_t patience
        cdef int outcome
        if self.mode != WAITS:
            # It reads one message, and will then be overwritten. Its head has the top bit as long; in the order of
            # counters this number comes after such a head, and before all that are without.
            until = c.p.cached_head + (<uint64_t>3 << (TOP_BIT - 1))
        wake_at = max(until, c.p.tail - c.p.capacity + c.p.capacity // 4) if self.mode == WAITS else c.p.cached_head
        cdef bint was_busy = self.end.is_busy      # in the middle of a long message
        be_patient(&patience, timeout_ns)
        self.end.is_busy = True
        try:
            while True:
                with nogil:
                    outcome = await_counter(&c.watch, &c.p.ring.head, until, wake_at, &patience)
                if outcome != UNREADY:
                    break
                PyErr_CheckSignals()
        finally:
            self.end.is_busy = was_busy
        if outcome == LATE:
            raise queue.Full(f"receiver {i}, process {c.watch.other.life.pid}, has not made room")
        c.is_over = outcome == GONE
        return 0

    cdef int finish(self, steps, object timeout) except -1:
        """Run steps of the ordinary sender, announcing each and making room for the next. How many go on."""
        cdef int64_t timeout_ns = timeout_of(timeout), started = now_ns() if timeout_ns > 0 else 0, left = timeout_ns
        try:
            for wanted in steps:
                self.relay()
                if timeout_ns > 0:
                    left = max(<int64_t>0, timeout_ns - (now_ns() - started))
                self.make_room(wanted, left)
        finally:
            steps.close()
        return self.relay()

    # ---- sending ----

    def send(self, x, timeout=None):
        """Send bytes or an array to all receivers; or, in a broadcast of records, one record.

        Parameters
        ----------
        x : bytes-like or array; or record
            As in `Sender.send`, or `RecordSender.send`. With ``when_slow="wait"`` of any size, else at most half the
            capacity.
        timeout : float, optional
            Seconds to wait for room; None for ever, 0 not at all. What it is waited for is the slowest receiver.

        Returns
        -------
        int
            To how many receivers: those that are not there yet among them, and not those that are gone.

        Raises
        ------
        queue.Full
            No room in time. No receiver will see anything of this message.
        PeerLostError
            All receivers are gone.
        TypeError, ValueError
            As in `Sender.send`. Nothing was sent.
        """
        self.prepare()
        if self.has_dtype:
            self.push_records(np.array([x], self.fan.dtype), timeout)
            return self.relay()
        try:
            self.master.send(x, 0)
        except (queue.Full, ValueError):
            return self.finish(self.master._by_and_by(x, False, self.mode != WAITS), timeout)
        return self.relay()

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
        self.prepare()
        pickled = self.master._packed(obj)
        try:
            self.master._send_pickled(pickled, 0)
        except (queue.Full, ValueError):
            return self.finish(self.master._by_and_by(pickled, True, self.mode != WAITS), timeout)
        return self.relay()

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
        try:
            return self.send(x, 0) > 0
        except queue.Full:
            return False

    def send_many(self, messages, timeout=None):
        """Send several messages, announced together as far as there is room; or records, as one array.

        Parameters
        ----------
        messages : iterable of bytes-like or array; or array of records
        timeout : float, optional
            Seconds to wait for room in all; None for ever, 0 not at all.

        Returns
        -------
        int
            How many went in, from the first one on; fewer than there are only if time ran out.

        Raises
        ------
        PeerLostError, TypeError, ValueError
            As in `send`. Those before the one concerned were sent.
        """
        cdef int64_t timeout_ns = timeout_of(timeout), started = now_ns() if timeout_ns > 0 else 0
        cdef int count = 0
        self.prepare()
        if self.has_dtype:
            return self.push_records(np.asarray(messages, self.fan.dtype), timeout)
        try:
            for x in messages:
                try:
                    self.master.send(x, 0)
                except (queue.Full, ValueError):
                    left = None if timeout_ns < 0 else max(0, timeout_ns - (now_ns() - started)) / 1e9
                    try:
                        self.finish(self.master._by_and_by(x, False, self.mode != WAITS), left)
                    except queue.Full:
                        break
                count += 1
                if count % QUIET_MAX == 0:
                    self.relay()
        finally:
            self.relay()
        return count

    cdef object push_records(self, array, object timeout):
        cdef int64_t timeout_ns = timeout_of(timeout), started = now_ns() if timeout_ns > 0 else 0, left = timeout_ns
        cdef uint64_t done = 0, count = array.size
        while True:
            done += <uint64_t>self.master.send_many(array[done:], 0)
            self.relay()
            if done == count:
                return done
            if timeout_ns > 0:
                left = max(<int64_t>0, timeout_ns - (now_ns() - started))
            try:
                self.make_room(min(count - done, max(<uint64_t>1, self.end.ring.nslots // 4)), left)
            except queue.Full:
                if count == 1:
                    raise
                return done

    def reserve(self, shape=1, dtype=None, timeout=None):
        """Lend memory of the ring, to write in place what all receivers get. Raises as `Sender.reserve`.

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
        cdef int64_t timeout_ns = timeout_of(timeout), started = now_ns() if timeout_ns > 0 else 0, left = timeout_ns
        cdef uint64_t wanted = 8, quarter
        self.prepare()
        quarter = max(<uint64_t>1, self.end.ring.nslots // 4)
        while True:
            try:
                return self.master.reserve(shape, 0) if self.has_dtype else self.master.reserve(shape, dtype, 0)
            except queue.Full:
                if timeout_ns > 0:
                    left = max(<int64_t>0, timeout_ns - (now_ns() - started))
                self.make_room(wanted, left)
                wanted += quarter

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
        self.master.commit(count)
        return self.relay()

    def abort(self):
        """Give up what was reserved, and end the lease; no receiver ever knows. Raises as `Sender.commit`."""
        self.master.abort()

    # ---- how it stands, and leaving ----

    @property
    def receivers(self):
        """How each receiver stands: state, pid, how far behind, how much it missed."""
        cdef cursor_t *c
        cdef shmring_ring *ring
        cdef uint64_t head
        cdef int i
        looks = []
        self.prepare()
        for i in range(self.count):
            c = &self.cursors[i]
            ring = c.p.ring
            head = load_acquire_u64(&ring.head)
            if ring.drops:
                head &= ~(<uint64_t>1 << TOP_BIT)
            state = END_STATES[ring_end_state(c.watch.other)]
            if ring.producer.closed == DISCONNECTED:
                state = "disconnected"
            looks.append(Follower(state, c.watch.other.life.pid, (c.p.tail - head) / c.p.capacity, ring.sent.overwritten))
        return looks

    @property
    def sent_count(self):
        """Messages ever sent."""
        return self.end.ring.sent.messages

    @property
    def dropped_count(self):
        """Messages that receivers were too slow for, all receivers together."""
        return sum([follower.dropped_count for follower in self.receivers])

    @property
    def capacity_nbytes(self):
        """Size of the ring in bytes, headers included."""
        return self.end.ring.nslots * self.end.ring.slot_nbytes

    @property
    def closed(self):
        """Whether this end was closed here."""
        return self.end.is_closed

    def close(self):
        """Close this end in good order: all was said. Idempotent; what was sent stays receivable.

        Raises
        ------
        BufferError
            Arrays of a lease are still alive. Nothing was closed; delete them and call again.
        """
        self.close_all(True)

    cdef int close_all(self, bint in_good_order) except -1:
        if self.end.is_closed:
            return 0
        self.end.close_end(in_good_order)
        if self.is_taken and self.generation == fork_generation():
            self.is_taken = False
            self.leave(in_good_order)
        return 0

    cdef void leave(self, bint in_good_order) noexcept:
        cdef uint64_t tail = load_relaxed_u64(&self.end.ring.tail)
        cdef cursor_t *c
        cdef int i
        for i in range(self.count):
            c = &self.cursors[i]
            if c.p.ring == NULL or c.p.ring.producer.closed == DISCONNECTED:
                continue
            if not c.is_over:          # a message that was given up is cut at the end
                c.p.reserved = tail - c.p.tail
                ring_commit(&c.p, c.p.reserved)
            ring_close_producer(&c.p, in_good_order)
            wake_peer_at_once(&c.watch)

    def __enter__(self):
        self.prepare()
        return self

    def __exit__(self, exception_type, exception, traceback):
        self.close_all(exception_type is None)

    def __reduce__(self):
        self.master.__reduce__()           # raises if it was used
        return BroadcastSender, (self.fan,)

    def __repr__(self):
        return f"<shmring.BroadcastSender to {self.count} receivers{', closed' if self.end.is_closed else ''}>"
