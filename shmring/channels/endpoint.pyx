"""What all ends of channels have in common: they are taken once, waited at, lent from, closed.

An end belongs to nobody until it is first used (or `End.take` is called): so it can be inherited through a fork, or
pickled to a process that is being started, by whatever start method, and the process that uses it has it.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.string cimport strerror

import os

from shmring.channels.eventfd cimport Alarm
from shmring._c.atomics cimport load_acquire_u64
from shmring._c.layout cimport shmring_waiter
from shmring.sync.liveness cimport fork_generation
from shmring.ring.spsc cimport (END_CLOSED, END_LOST, RING_CORRUPT, RING_FOREIGN, RING_TAKEN,
                           ring_end_state)
from shmring.ring.blocking cimport GONE, LATE, await_briefly, await_counter
from shmring.sync.backoff cimport be_patient, patience_t
from shmring.sync.group cimport READY, UNREADY

from shmring.errors import ClosedError, DisconnectedError, EndOfStreamError, PeerLostError, RoleTakenError, SegmentError
from shmring.ring.spsc import END_STATES

WHEN_FULL = ("wait", "drop_newest", "drop_oldest")     # in the order of WAITS, DROPS_NEWEST, DROPS_OLDEST


cdef int64_t timeout_of(object timeout) except? -2:
    """Seconds, or None for ever, as nanoseconds, or -1."""
    if timeout is None:
        return -1
    cdef double seconds = timeout
    if not seconds >= 0:
        raise ValueError(f"timeout={timeout!r}: must be seconds from 0 up, or None to wait for ever")
    return <int64_t>min(seconds * 1e9, 9e18)


# no_gc: nothing an end refers to refers back to it, and the collector must not drop the mapping before the ring is
# left.
@cython.no_gc
cdef class End:
    """One end of a channel; made by `shmring.channel` and `shmring.open_channel`.

    Belongs to the process that uses it first, and to one thread at a time.
    """

    def __init__(self, channel, str role):
        self.channel = channel
        self.role = role
        self.mapping = channel.mapping
        self.ring = <shmring_ring *>(self.mapping.address + <size_t>channel.ring_offset)
        self.ring_nbytes = self.mapping.nbytes - <size_t>channel.ring_offset
        is_sender = role == "sender"
        self.watch.own = &self.ring.producer if is_sender else &self.ring.consumer
        self.watch.other = &self.ring.consumer if is_sender else &self.ring.producer
        self.watch.counts = &self.ring.sent if is_sender else &self.ring.received
        self.watch.waiter = &self.watch.own.waiter
        self.watch.peer = &self.watch.other.waiter
        self.watch.wake = &self.watch.peer.wake
        if channel.common_bell_offset and is_sender:
            self.watch.wake = &(<shmring_waiter *>(self.mapping.address + <size_t>channel.common_bell_offset)).wake
        self.watch.yields = 4
        self.watch.spin_ns = channel.spin_ns
        self.watch.tick_ns = channel.tick_ns
        self.drops = WHEN_FULL.index(channel.when_full)
        self.is_lent = channel.is_lent

    # ---- what the two sides do differently ----

    cdef int attach(self, bint again) noexcept:
        return RING_FOREIGN

    cdef void resume(self, bint must_cut) noexcept:
        pass

    cdef void leave(self, bint in_good_order) noexcept:
        pass

    # ---- belonging ----

    def take(self):
        """Make this end belong to this process now, instead of at its first use.

        Returns
        -------
        End
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

    cdef int prepare(self) except -1:
        """Whatever is in the way of a call: not taken yet, closed, inherited, another thread in it."""
        cdef int code = RING_FOREIGN
        if self.is_closed:
            raise ClosedError(f"this {self.role} is closed")
        if self.is_taken and self.generation != fork_generation():
            raise ClosedError(f"this {self.role} belongs to the process that this one was forked from")
        if self.is_busy:
            raise RuntimeError(f"another thread is in a call of this {self.role}: an end is for one thread at a time")
        if self.is_taken:
            return 0
        with self.channel.taking(self.role) as again:
            code = self.attach(again)
        if code == RING_TAKEN:
            pid = self.watch.own.life.pid
            state = ("just taking it", "alive", "who has closed it", "dead")[ring_end_state(self.watch.own)]
            raise RoleTakenError(f"the {self.role} of {self.channel.title} belongs to process {pid} ({state})", pid)
        if code == RING_CORRUPT or code == RING_FOREIGN:
            raise SegmentError(f"{self.channel.title} is spoilt: its ring is not one any more")
        if code:
            raise OSError(code, f"cannot hold a liveness: {strerror(code).decode()}")
        if not self.is_lent:
            processors = os.sched_getaffinity(0)
            self.watch.own.only = 1 + min(processors) if len(processors) == 1 else 0
        self.watch.own.waiter.asleep = 0     # the last holder may have died in its sleep
        self.generation = fork_generation()
        self.is_taken = True
        return 0

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
            raise ValueError(f"nothing is {how}")
        return 0

    # ---- waiting ----

    cdef int wait_for(self, const uint64_t *counter, uint64_t until, uint64_t wake_at, int64_t timeout_ns) except -1:
        """READY, GONE or LATE. Lets go of the GIL unless it comes at once; hears Ctrl-C."""
        cdef patience_t patience
        cdef int outcome
        if timeout_ns == 0:
            outcome = self.look_once(counter, until)
            if outcome == LATE and self.alarm is not None:
                self.alarm.rings[0].counter = counter
                self.alarm.arm(&until)
            return outcome
        self.hush()
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

    cdef void hush(self) noexcept:
        """Only one may sleep at a bell: the alarm rings now, and looks on again once this end was found empty, or
        full."""
        if self.alarm is not None:
            self.alarm.ring()

    def fileno(self):
        """A descriptor for ``select``, ``poll``, ``epoll`` and event loops: readable when there may be something to do.

        Returns
        -------
        int
            An eventfd, readable from when a receiver may have a message, or has no sender any more; a sender, room for
            what did not fit. It stays so until a call with ``timeout=0`` (`try_recv`, `poll`, `try_send`) finds that
            there is none: so read on until then. It closes with this end.

        Notes
        -----
        From the first call on, a thread of this process sleeps where this end would.
        """
        if self.alarm is None or self.generation != fork_generation():
            self.prepare()
        if self.alarm is None:
            self.alarm = Alarm(1, self.mapping)
            self.alarm.rings[0].watch = &self.watch
            self.alarm.wake = &self.watch.waiter.wake
        return self.alarm.descriptor

    cdef int look_once(self, const uint64_t *counter, uint64_t until) noexcept:
        cdef int state = ring_end_state(self.watch.other)
        if <int64_t>(load_acquire_u64(counter) - until) >= 0:
            return READY
        return GONE if state == END_CLOSED or state == END_LOST else LATE

    cdef object peer_state(self):
        return END_STATES[ring_end_state(self.watch.other)]

    cdef object lost(self):
        """The error that the other end is gone."""
        pid = self.watch.other.life.pid
        if self.watch.other.closed == DISCONNECTED:
            return DisconnectedError(f"process {pid} has disconnected this receiver of {self.channel.title}, which was "
                                     f"too slow: {self.ring.sent.overwritten} messages were dropped", -1, pid)
        other = "receiver" if self.role == "sender" else "sender"
        how = "has closed it" if ring_end_state(self.watch.other) == END_CLOSED else "died or left without close()"
        return PeerLostError(f"the {other} of {self.channel.title}, process {pid}, {how}", -1, pid)

    cdef object gone(self):
        """For a receiver: the error that nothing more will come."""
        if ring_end_state(self.watch.other) == END_CLOSED:
            return EndOfStreamError(f"the sender of {self.channel.title} has closed it, and all was received")
        return self.lost()

    cdef object corrupt(self):
        return SegmentError(f"what the other end wrote into {self.channel.title} cannot be; nothing was read or sent")

    # ---- leaving ----

    def close(self):
        """Close this end in good order: all was said, or nothing more will be read. Idempotent.

        What was sent stays receivable. An end that goes without (garbage collection, the end of the interpreter, a
        ``with`` block left by an exception, death) is lost to the other side, never mistaken for an orderly end.

        Raises
        ------
        BufferError
            Arrays of a lease are still alive. Nothing was closed; delete them and call again.
        """
        self.close_end(True)

    cdef int close_end(self, bint in_good_order) except -1:
        cdef bint is_own = self.is_taken and self.generation == fork_generation()
        if self.is_closed:
            return 0
        if is_own and self.is_busy:
            self.prepare()
        if is_own and self.lease is not None:
            self.lease.end()
            self.lease = None
        self.is_closed = True
        if is_own:
            self.silence()
            self.leave(in_good_order)
        self.is_taken = False
        self.channel.leave()
        return 0

    def __enter__(self):
        self.prepare()
        return self

    def __exit__(self, exception_type, exception, traceback):
        self.close_end(exception_type is None)

    def __dealloc__(self):
        if self.is_taken and self.generation == fork_generation():
            self.silence()
            self.leave(False)

    cdef int silence(self) except -1:
        if self.alarm is not None:
            self.alarm.stop()
            self.alarm = None
        return 0

    def __reduce__(self):
        if self.is_taken or self.is_closed:
            raise TypeError(f"this {self.role} belongs to process {os.getpid()} or is closed: only an end that was "
                            "never used can be pickled")
        return type(self), (self.channel, self.role)

    @property
    def closed(self):
        """Whether this end was closed here."""
        return self.is_closed

    @property
    def peer(self):
        """How the other end stands: ``absent``, ``here``, ``closed``, or ``lost``: died, or left without closing."""
        if self.is_closed:
            raise ClosedError(f"this {self.role} is closed")
        return self.peer_state()

    @property
    def peer_pid(self):
        """Process id of the other end's holder in its own PID namespace; 0 if nobody took it yet."""
        return self.watch.other.life.pid

    @property
    def name(self):
        """The name it was opened by."""
        return self.channel.key

    @property
    def when_full(self):
        """What sending into a full channel does: ``wait``, ``drop_newest`` or ``drop_oldest``."""
        return self.channel.when_full
