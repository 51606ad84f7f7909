"""Base classes of the ends of channels: taken by one process, waited at, leased from, closed.

An end belongs to no process until its first use (or `take`). So it can be inherited through a fork, or pickled to a
process that is being started, by any start method, and belongs to the process that uses it.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.string cimport strerror

import os

from shmring._c.atomics cimport load_acquire_u64
from shmring._c.layout cimport shmring_waiter
from shmring.channels.eventfd cimport Notifier
from shmring.ring.blocking cimport GONE, LATE, await_briefly, await_counter
from shmring.ring.spsc cimport END_CLOSED, END_LOST, RING_CORRUPT, RING_FOREIGN, RING_TAKEN, ring_end_state
from shmring.sync.liveness cimport fork_generation
from shmring.sync.backoff cimport be_patient, patience_t
from shmring.sync.group cimport READY, UNREADY

from shmring.channels.format import WHEN_FULL
from shmring.channels.memory import ChannelMemory
from shmring.errors import ClosedError, DisconnectedError, PeerLostError, RoleTakenError, SegmentError
from shmring.ring.spsc import END_STATES


cdef class Endpoint:
    """One end of a channel, of one ring or of several.

    Belongs to the process that uses it first, and to one thread at a time.
    """

    cdef int prepare(self) except -1:
        """Take the end if no process has it yet; raise if it cannot be used."""
        raise NotImplementedError

    cdef int close_end(self, bint in_good_order) except -1:
        raise NotImplementedError

    cdef int require_usable(self, str role) except -1:
        if self.is_closed:
            raise ClosedError(f"this {role} is closed")
        if self.is_busy:
            raise RuntimeError(f"another thread is in a call of this {role}: an end is for one thread at a time")
        return 0

    @cython.critical_section
    def take(self):
        """Make this end belong to this process now, instead of at its first use.

        Returns
        -------
        Endpoint
            This end itself.

        Raises
        ------
        RoleTakenError
            Another process, or another object of this one, has it or had it; ``pid`` names it. An end of a named
            channel can be taken again once its holder has closed it or died.
        ClosedError
            It was closed here, or taken before this process was forked from its holder.
        """
        self.prepare()
        return self

    @cython.critical_section
    def close(self):
        """Close this end in good order: nothing more will be sent, or received. Idempotent.

        What was sent stays receivable. An end that goes without (garbage collection, the end of the interpreter, a
        ``with`` block left by an exception, death) is lost to the other side, never mistaken for an orderly end.

        Raises
        ------
        BufferError
            Arrays of a lease are still alive. Nothing was closed; delete them and call again.
        """
        self.close_end(True)

    @cython.critical_section
    def __enter__(self):
        self.prepare()
        return self

    @cython.critical_section
    def __exit__(self, exception_type, exception, traceback):
        self.close_end(exception_type is None)

    @property
    def closed(self):
        """Whether this end was closed here."""
        return self.is_closed


# no_gc: nothing an end refers to refers back to it, and the collector must not drop the mapping before the ring is
# left.
@cython.no_gc
cdef class RingEndpoint(Endpoint):
    """One end of one ring; made by `shmring.channel` and `shmring.open_channel`."""

    def __cinit__(self, channel, str role):
        if not isinstance(channel, ChannelMemory) or role not in ("sender", "receiver"):
            raise TypeError(f"{type(self).__name__}({channel!r}, {role!r}): ends are made by the calls for channels")
        self.channel = channel
        self.role = role
        self.mapping = channel.mapping
        if self.mapping.nbytes < <size_t>channel.ring_offset + sizeof(shmring_ring):
            raise SegmentError(f"{channel.title} is corrupted: its memory has no room for a ring")
        self.ring = <shmring_ring *>(self.mapping.address + <size_t>channel.ring_offset)
        self.ring_nbytes = self.mapping.nbytes - <size_t>channel.ring_offset
        is_sender = role == "sender"
        self.watch.own = &self.ring.producer if is_sender else &self.ring.consumer
        self.watch.other = &self.ring.consumer if is_sender else &self.ring.producer
        self.watch.counts = &self.ring.sent if is_sender else &self.ring.received
        self.watch.waiter = &self.watch.own.waiter
        self.watch.peer = &self.watch.other.waiter
        self.watch.wake = &self.watch.peer.wake
        if channel.common_waiter_offset and is_sender:
            self.watch.wake = &(<shmring_waiter *>(self.mapping.address + <size_t>channel.common_waiter_offset)).wake
        self.watch.yields = 4
        self.watch.spin_ns = channel.spin_ns
        self.watch.tick_ns = channel.tick_ns
        self.drops = WHEN_FULL[channel.when_full]
        self.owned_by_lock = channel.owned_by_lock

    # ---- what senders and receivers do differently ----

    cdef int attach(self, bint again) noexcept:
        return RING_FOREIGN

    cdef void leave(self, bint in_good_order) noexcept:
        pass

    # ---- taking ----

    cdef int prepare(self) except -1:
        cdef int code = RING_FOREIGN
        cdef uint32_t only
        if self.is_taken and self.generation != fork_generation() and not self.is_closed:
            raise ClosedError(f"this {self.role} belongs to the process that this one was forked from")
        self.require_usable(self.role)
        if self.is_taken:
            return 0
        # No Python code runs, and so no signal handler and no other thread, between the ring's note and the end's own.
        processors = None if self.owned_by_lock else os.sched_getaffinity(0)
        only = 1 + min(processors) if processors is not None and len(processors) == 1 else 0
        with self.channel.taking(self.role) as again:
            if self.is_taken:      # another thread was quicker,
                code = 0
            else:
                code = self.attach(again)
                if not code:
                    self.note_taken(only)
        if code == RING_TAKEN:
            pid = self.watch.own.liveness.pid
            state = ("being taken", "alive", "closed by it", "its holder is dead")[ring_end_state(self.watch.own)]
            raise RoleTakenError(f"process {pid} has taken the {self.role} of {self.channel.title} ({state})", pid)
        if code == RING_CORRUPT or code == RING_FOREIGN:
            raise SegmentError(f"{self.channel.title} is corrupted: its ring header is invalid")
        if code:
            raise OSError(code, f"cannot register the {self.role} for death detection: {strerror(code).decode()}")
        self.require_usable(self.role)      # and may be in a call by now
        return 0

    cdef void note_taken(self, uint32_t only) noexcept:
        if not self.owned_by_lock:
            self.watch.own.only = only
        self.watch.own.waiter.asleep = 0     # the last holder may have died asleep
        self.generation = fork_generation()
        self.is_taken = True

    cdef int require_idle(self) except -1:
        if not self.is_taken or self.is_busy or self.generation != fork_generation():
            self.prepare()
        if self.lease is not None:
            raise ValueError("a lease is still open: commit, abort or release it first")
        return 0

    cdef int require_lease(self, str how) except -1:
        if not self.is_taken or self.generation != fork_generation():
            self.prepare()
        if self.lease is None:
            raise ValueError(f"nothing is {how}: call {'peek' if how == 'peeked' else 'reserve'}() first")
        return 0

    cdef int end_lease(self) except -1:
        self.lease.end()
        self.lease = None
        return 0

    # ---- waiting ----

    cdef int wait_for(self, const uint64_t *counter, uint64_t until, uint64_t wake_at, int64_t timeout_ns) except -1:
        """READY, GONE or LATE. Releases the GIL unless the counter reaches ``until`` at once; handles signals."""
        cdef patience_t patience
        cdef int outcome
        if timeout_ns == 0:
            outcome = self.look_once(counter, until)
            if outcome == LATE and self.notifier is not None:
                self.notifier.notice.awaited[0].counter = counter
                self.notifier.arm(&until)
            return outcome
        self.signal_notifier()
        if await_briefly(&self.watch, counter, until) == READY:
            return READY
        be_patient(&patience, timeout_ns)
        self.is_busy = True
        try:
            while True:
                with nogil:
                    outcome = await_counter(&self.watch, counter, until, wake_at, &patience)
                if outcome != UNREADY:
                    return outcome
                PyErr_CheckSignals()
        finally:
            self.is_busy = False

    cdef void signal_notifier(self) noexcept:
        """A waiter word has room for one waiter: the notifier's thread leaves it to this call, and waits again once a
        call with ``timeout=0`` has found nothing to do."""
        if self.notifier is not None:
            self.notifier.signal()

    cdef int look_once(self, const uint64_t *counter, uint64_t until) noexcept:
        cdef int state = ring_end_state(self.watch.other)
        if <int64_t>(load_acquire_u64(counter) - until) >= 0:
            return READY
        return GONE if state == END_CLOSED or state == END_LOST else LATE

    @cython.critical_section
    def fileno(self):
        """A descriptor for ``select``, ``poll``, ``epoll`` and event loops: readable when there may be something to do.

        Returns
        -------
        int
            An eventfd. For a receiver it becomes readable when a message may have come or the sender is gone; for a
            sender, when there may be room for what did not fit. It stays readable until a call with ``timeout=0``
            (`try_recv`, `poll`, `try_send`) finds nothing to do: so call on until then. It closes with this end.

        Notes
        -----
        From the first call on, a thread of this process waits in place of this end.
        """
        if self.notifier is None or self.generation != fork_generation():
            self.prepare()
        if self.notifier is None:
            self.notifier = Notifier(1, self.mapping)
            self.notifier.notice.awaited[0].watch = &self.watch
            self.notifier.notice.wake = &self.watch.waiter.wake
        return self.notifier.notice.descriptor

    # ---- errors ----

    cdef object peer_lost(self):
        """The error that the other end is gone."""
        pid = self.watch.other.liveness.pid
        if self.watch.other.closed == DISCONNECTED:
            return DisconnectedError(f"process {pid} has disconnected this receiver of {self.channel.title}, which was "
                                     f"too slow: {self.ring.sent.overwritten} messages were dropped", -1, pid)
        other = "receiver" if self.role == "sender" else "sender"
        how = "has closed it" if ring_end_state(self.watch.other) == END_CLOSED else "died or left without close()"
        return PeerLostError(f"the {other} of {self.channel.title}, process {pid}, {how}", -1, pid)

    cdef object corrupt(self):
        return SegmentError(f"the peer wrote an invalid counter or frame into {self.channel.title}: no data was "
                            "transferred by this call")

    # ---- leaving ----

    cdef int close_end(self, bint in_good_order) except -1:
        cdef bint is_own = self.is_taken and self.generation == fork_generation()
        if self.is_closed:
            return 0
        if is_own and self.is_busy:
            self.prepare()
        if is_own and self.lease is not None:
            self.end_lease()
        self.is_closed = True
        self.notifier = None
        if is_own:
            self.leave(in_good_order)
        self.is_taken = False
        self.channel.leave()
        return 0

    def __dealloc__(self):
        self.notifier = None           # its thread waits in a waiter word of the ring
        if self.is_taken and self.generation == fork_generation():
            self.leave(False)

    def __reduce__(self):
        if self.is_taken or self.is_closed:
            raise TypeError(f"this {self.role} belongs to process {os.getpid()} or is closed: only an end that was "
                            "never used can be pickled")
        return type(self), (self.channel, self.role)

    # ---- state ----

    @property
    @cython.critical_section
    def peer(self):
        """State of the other end: ``absent``, ``here``, ``closed``, or ``lost``: died, or left without closing."""
        if self.is_closed:
            raise ClosedError(f"this {self.role} is closed")
        return END_STATES[ring_end_state(self.watch.other)]

    @property
    @cython.critical_section
    def peer_pid(self):
        """Process id of the other end's holder in its own PID namespace; 0 if no process has taken it yet."""
        return self.watch.other.liveness.pid

    @property
    def name(self):
        """The name it was opened by."""
        return self.channel.key

    @property
    def when_full(self):
        """What sending into a full channel does: ``wait``, ``drop_newest`` or ``drop_oldest``."""
        return self.channel.when_full

    @property
    @cython.critical_section
    def dropped_count(self):
        """Messages, or records, ever dropped because they did not fit, or because newer ones did not."""
        return self.ring.sent.dropped + self.ring.sent.overwritten

    @cython.critical_section
    def __len__(self):
        """Messages, or records, sent and not yet received: a hint, the other end may change it at any time."""
        return max(0, <int64_t>(self.ring.sent.messages - self.ring.sent.overwritten - self.ring.received.messages))

    def __repr__(self):
        return f"<shmring.{type(self).__name__} of {self.channel.title}{', closed' if self.is_closed else ''}>"
