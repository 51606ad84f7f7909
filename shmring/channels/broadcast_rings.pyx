"""The rings of a broadcast: what is written once is announced in the ring of each receiver.

The rings of a broadcast have the same slots. The first is an ordinary ring that the sending process alone uses: an
ordinary sender writes through it. What it has committed is then announced in the ring of each receiver, which for the
receiver is a ring like any other. The first ring's `head`, below which slots may be overwritten, is the smallest of
theirs. So there is one copy of each message for all receivers, and each receiver has the guarantees of a ring.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdlib cimport calloc, free

import queue

from shmring._c.atomics cimport (load_acquire_u64, load_relaxed_u64, store_relaxed_u64, store_release_u32,
                                 store_release_u64)
from shmring._c.faults cimport fault_point
from shmring.channels.endpoint cimport DISCONNECTED, deadline_of, is_gone, left_until
from shmring.channels.format cimport SLOW_DISCONNECTS, SLOW_WAITS
from shmring.memory.mapping cimport Mapping
from shmring.ring.blocking cimport GONE, LATE, await_counter, wake_peer, wake_peer_at_once
from shmring.ring.overwrite cimport after_claim, overwrite_frames, overwrite_slots, position_of
from shmring.ring.spsc cimport ring_attach_producer, ring_close_producer, ring_commit
from shmring.sync.liveness cimport drop_liveness, fork_generation
from shmring.sync.backoff cimport be_patient, patience_t
from shmring.sync.group cimport READY, UNREADY

from shmring.channels.format import WHEN_SLOW
from shmring.channels.multi_ring import RingSet
from shmring.channels.record_sender import RecordSender
from shmring.channels.sender import Sender
from shmring.errors import PeerLostError, SegmentError


@cython.no_gc
cdef class BroadcastRings(Endpoint):
    """All rings of a broadcast, at the sending end."""

    def __cinit__(self, rings):
        if not isinstance(rings, RingSet):
            raise TypeError(f"{type(self).__name__}({rings!r}): call shmring.broadcast_channel() instead")
        self.rings = rings
        self.count = rings.count
        self.when_slow = WHEN_SLOW[rings.when_slow]
        self.sender = (Sender if rings.dtype is None else RecordSender)(rings.ring(0), "sender")
        self.cursors = <cursor_t *>calloc(self.count, sizeof(cursor_t))
        if self.cursors == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.is_taken and self.generation == fork_generation():
            self.leave(False)
        free(self.cursors)

    # ---- taking and leaving ----

    cdef int prepare(self) except -1:
        cdef Mapping mapping = self.sender.mapping
        cdef cursor_t *c
        cdef list offsets
        cdef size_t offset
        cdef int i, code
        self.sender.require_idle()
        if self.is_taken:
            return 0
        offsets = [self.rings.ring(i + 1).ring_offset for i in range(self.count)]
        if self.is_taken:      # another thread has meanwhile, and may be in a call; no Python code runs from here on
            return self.prepare()
        for i in range(self.count):
            c = &self.cursors[i]
            offset = <size_t>offsets[i]
            code = ring_attach_producer(&c.p, mapping.address + offset, mapping.nbytes - offset)
            if code:
                c.p.ring = NULL
                self.leave(False)
                self.close_end(False)
                raise SegmentError(
                    f"ring {i + 1} of this broadcast cannot be attached (code {code}): this sender is now closed"
                )
            c.watch = self.sender.watch
            c.watch.own = &c.p.ring.producer
            c.watch.other = &c.p.ring.consumer
            c.watch.waiter = &c.watch.own.waiter
            c.watch.peer = &c.watch.other.waiter
            c.watch.wake = &c.watch.peer.wake
            c.watch.counts = &c.p.ring.sent
        self.sender.p.learns_stores = self.when_slow == SLOW_WAITS
        self.generation = fork_generation()
        self.is_taken = True
        return 0

    cdef int close_end(self, bint in_good_order) except -1:
        if self.is_closed:
            return 0
        self.sender.close_end(in_good_order)
        self.is_closed = True
        if self.is_taken and self.generation == fork_generation():
            self.is_taken = False
            self.leave(in_good_order)
        return 0

    cdef void leave(self, bint in_good_order) noexcept:
        cdef uint64_t tail = load_relaxed_u64(&self.sender.ring.tail)
        cdef cursor_t *c
        cdef int i
        for i in range(self.count):
            c = &self.cursors[i]
            if c.p.ring == NULL or c.p.ring.producer.closed == DISCONNECTED:
                continue
            if not c.is_over:          # the CUT frame of a message that was given up
                c.p.reserved = tail - c.p.tail
                ring_commit(&c.p, c.p.reserved)
            ring_close_producer(&c.p, in_good_order)
            wake_peer_at_once(&c.watch)

    # ---- from the first ring to the others, and back ----

    cdef int announce_to_all(self) except -1:
        """Announce in each ring what was committed through the first. How many receivers are left."""
        cdef uint64_t tail = load_relaxed_u64(&self.sender.ring.tail)
        cdef cursor_t *c
        cdef int i, left = 0
        for i in range(self.count):
            c = &self.cursors[i]
            if c.is_over:
                continue
            if is_gone(c.watch.other):
                c.is_over = True
                continue
            left += 1
            fault_point("relay")
            store_relaxed_u64(&c.p.ring.sent.messages, load_relaxed_u64(&self.sender.ring.sent.messages))
            c.p.reserved = tail - c.p.tail
            ring_commit(&c.p, c.p.reserved)
            wake_peer(&c.watch, tail)
        if not left:
            raise PeerLostError(f"all {self.count} receivers of this broadcast are closed or dead", -1,
                                self.cursors[0].watch.other.liveness.pid)
        return left

    cdef int load_head(self, cursor_t *c) except -1:
        """Load what a receiver has released."""
        # SYNC drained (meets: ring_release in ring/spsc.pxd).
        cdef uint64_t head = position_of(c.p.ring, load_acquire_u64(&c.p.ring.head))
        if c.p.tail - head > c.p.capacity:
            raise self.corrupt()
        c.p.cached_head = head
        return 0

    cdef int make_room(self, uint64_t wanted, int64_t timeout_ns) except -1:
        """READY once so many slots are free in the first ring; LATE: receiver `late` has not made room."""
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef uint64_t behind = 0
        cdef uint64_t[2] read_ns = [0, 0]
        cdef cursor_t *c
        cdef int i, parity
        wanted = min(wanted, self.cursors[0].p.capacity)
        for i in range(self.count):
            c = &self.cursors[i]
            while not c.is_over:
                self.load_head(c)
                if c.p.capacity - (c.p.tail - c.p.cached_head) >= wanted or self.overwrite(c, wanted):
                    break
                if self.await_receiver(c, wanted, left_until(deadline_ns, timeout_ns)) == LATE:
                    self.late = i
                    return LATE
            if not c.is_over:
                behind = max(behind, c.p.tail - c.p.cached_head)
            for parity in range(2):
                read_ns[parity] += load_relaxed_u64(&c.p.ring.read_ns[parity])
        for parity in range(2):
            store_relaxed_u64(&self.sender.ring.read_ns[parity], read_ns[parity])
        # SYNC drained (meets: ring_free in ring/spsc.pxd). What the last of them has released, all have.
        store_release_u64(&self.sender.ring.head, load_relaxed_u64(&self.sender.ring.tail) - behind)
        return READY

    cdef object full(self):
        """The error that `make_room` was LATE."""
        pid = self.cursors[self.late].watch.other.liveness.pid
        return queue.Full(f"no room for this message: receiver {self.late} (process {pid}) has not taken earlier ones")

    cdef object corrupt(self):
        return SegmentError("a receiver of this broadcast wrote an invalid counter into its ring: nothing was sent")

    cdef bint overwrite(self, cursor_t *c, uint64_t wanted) except -1:
        """If slow receivers are not waited for: overwrite the unread messages of one, or disconnect it. False: it is
        waited for, or is reading the message that is in the way."""
        cdef uint64_t *overwritten = &c.p.ring.sent.overwritten
        cdef int outcome
        if self.when_slow == SLOW_WAITS:
            return False
        if self.when_slow == SLOW_DISCONNECTS:
            wanted = c.p.capacity
        if self.rings.dtype is None:
            outcome = overwrite_frames(&c.p, wanted, overwritten)
        else:
            outcome = overwrite_slots(&c.p, wanted, overwritten)
        if outcome < 0:
            raise self.corrupt()
        if outcome and self.when_slow == SLOW_DISCONNECTS:
            c.is_over = True
            store_release_u32(&c.p.ring.producer.closed, DISCONNECTED)
            drop_liveness(&c.p.ring.producer.liveness)
            wake_peer_at_once(&c.watch)
        return outcome

    cdef int await_receiver(self, cursor_t *c, uint64_t wanted, int64_t timeout_ns) except -1:
        """READY: a receiver has released enough slots, or the message that it was reading, or is gone; or LATE."""
        cdef uint64_t until = c.p.tail + wanted - c.p.capacity, wake_at
        cdef patience_t patience
        cdef int outcome
        if self.when_slow == SLOW_WAITS:
            wake_at = max(until, c.p.tail - c.p.capacity + c.p.capacity // 4)
        else:                                      # after one message it will be overwritten
            until, wake_at = after_claim(c.p.cached_head), c.p.cached_head
        cdef bint was_busy = self.sender.is_busy   # in the middle of a streamed message
        be_patient(&patience, timeout_ns)
        self.sender.is_busy = True
        try:
            while True:
                with nogil:
                    outcome = await_counter(&c.watch, &c.p.ring.head, until, wake_at, &patience)
                if outcome != UNREADY:
                    break
                PyErr_CheckSignals()
        finally:
            self.sender.is_busy = was_busy
        c.is_over = outcome == GONE
        return LATE if outcome == LATE else READY
