"""The sending end of a channel of messages: whole frames, streams of pieces, frames written in place.

A message that fits is one frame. A longer one, if the caller may wait, is streamed: a first frame with its length, then
pieces, so that both ends copy at the same time. A stream ends with its last piece, or early, before any other frame.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from libc.string cimport memcpy

import queue
from math import prod
from operator import index

import numpy as np

from shmring.core.c.atomics cimport load_acquire_u64, load_relaxed_u32, load_relaxed_u64
from shmring.core.c.layout cimport shmring_ring
from shmring.core.arrays.lease cimport make_lease
from shmring.core.base.timeouts cimport checked_part, int_or_none, timeout_to_ns
from shmring.channels.message_codec cimport (LONGEST_COPY_NS, QUIET_MAX, encode, encode_pickled, is_array_shape,
                                             message_t, pickle_object, start_stream, word_and_meta)
from shmring.channels.ring_ends cimport DROPPED, WAITS
from shmring.core.ring.blocking cimport GONE, LATE, awaited_t, await_any, drive
from shmring.core.ring.end cimport require_lease
from shmring.core.ring.framing cimport (ARRAY, BYTES, OTHER_DTYPE, PIECE, WORD_NBYTES, code_of, copy_in, kind_of,
                                   longest_frame, nwords_of, open_frame, put_load, stores_of_frame, word_of)
from shmring.core.memory.mapping cimport Mapping
from shmring.core.ring.spsc cimport RING_CORRUPT, ring_abort, ring_is_gone, ring_resume_producer
from shmring.core.sync.backoff cimport be_patient, deadline_of, left_until, now_ns
from shmring.core.sync.group cimport READY, UNREADY
from shmring.core.sync.liveness cimport fork_generation

from shmring.channels import aio


cdef enum:
    PIECE_NBYTES = 128 << 10       # of a stream: both ends copy at the same time, within the second-level cache
    PIECE_NBYTES_LEAST = 1024

cdef enum:                         # what a step of a stream ends with, beside the outcomes of waits
    NO_ROOM = 6

def _taken_messages(channel):
    """Up to which message all receivers of a channel have taken them; all, if no other process can take one."""
    cdef Mapping mapping = channel.mapping
    cdef shmring_ring *ring = <shmring_ring *>(mapping.address + <size_t>channel.ring_offset)
    cdef uint64_t taken = load_relaxed_u64(&ring.sent.messages), i
    if channel.key is not None and not channel.memory.has_name():
        return taken
    for i in range(<uint64_t>channel.nreceivers):
        if channel.key is not None or not ring_is_gone(&ring.heads[i].consumer):
            taken = min(taken, load_acquire_u64(&ring.heads[i].received.messages))
    return taken


cdef object too_many_blocks():
    return queue.Full("no room in time for the blocks of this message: as many as the kernel keeps in flight have been "
                      "sent and not taken yet. Start the receiver first")


# A stream under way.
ctypedef struct stream_t:
    message_t *m
    int64_t timeout_ns
    int64_t deadline_ns
    uint64_t needed                # slots that must be free for its next piece


@cython.final
@cython.no_gc
cdef class Sender(RingSender):
    """The sending end of a channel of messages; made by `shmring.channel`, `shmring.open_channel`, `shmring.fan_in` and
    `shmring.broadcast_channel`.

    A message is bytes, an array, or a Python object; the receiver gets what was sent. Belongs to the process that uses
    it first, and to one thread at a time.
    """

    cdef int attach(self, bint again) noexcept:
        cdef int code = RingSender.attach(self, again)
        if code == 0:
            self.longest = longest_frame(self.p.capacity)
            # Several pieces fit into the ring, unless they would be so small that their words cost as much.
            self.piece = min(min(self.longest, <uint64_t>PIECE_NBYTES),
                             max(self.longest // 4 // WORD_NBYTES * WORD_NBYTES, <uint64_t>PIECE_NBYTES_LEAST))
        return code

    cdef void resume(self) noexcept:
        """Take over from another process that had the lock of this end."""
        if self.p.tail != load_relaxed_u64(&self.ring.tail):     # else no other process has sent since
            ring_resume_producer(&self.p)

    cdef void leave(self, bint in_good_order) noexcept:
        self.announce_quiet()
        RingSender.leave(self, in_good_order)

    # ---- without waiting: READY, or LATE: `wanted` slots must be free first ----

    cdef int try_open(self, uint64_t word, uint64_t nbytes, char **to, uint64_t *wanted) except -1:
        """Reserve a whole frame, at ``to``."""
        cdef int64_t needed
        if nbytes > self.longest:
            raise ValueError(f"a message of {nbytes} bytes is too long to go in one piece (at most {self.longest}): "
                             "make the capacity larger, or call send() with a timeout, which sends several pieces")
        self.require_receiver()
        wanted[0] = 1
        self.unsent_nbytes = nbytes
        to[0] = open_frame(&self.p, word, nbytes, &needed)
        if to[0] != NULL:
            return READY
        if needed == RING_CORRUPT:
            raise self.corrupt()
        wanted[0] = needed
        return LATE

    cdef bint is_whole(self, message_t *m, bint may_wait) noexcept:
        """Whether a message goes as one frame: a longer one is streamed, but only by a call that may wait."""
        return m.load.nbytes <= self.piece or self.policy != WAITS or not may_wait

    cdef int try_room(self, uint64_t nbytes, uint64_t *wanted) except -1:
        """Whether there is room for a whole frame; it stays there until this end sends."""
        cdef char *to
        cdef int outcome = self.try_open(0, nbytes, &to, wanted)
        if outcome == READY:
            ring_abort(&self.p)
        return outcome

    cdef int try_whole(self, message_t *m, uint64_t *wanted) except -1:
        """Send a message as one frame."""
        cdef char *to
        cdef int outcome = self.try_open(m.load.word | stores_of_frame(&self.p, m.load.nbytes), m.load.nbytes, &to,
                                         wanted)
        if outcome != READY:
            return outcome
        if m.load.nbytes <= self.piece:
            put_load(&self.p, to, &m.load, m.load.nbytes)
        else:
            self.is_busy = True
            with nogil:
                put_load(&self.p, to, &m.load, m.load.nbytes)
            self.is_busy = False
        announce(self, 1)
        return READY

    cdef int try_begin_stream(self, message_t *m, uint64_t *wanted) except -1:
        """Begin a stream once there is room for a frame; raise the errors after which nothing may be sent."""
        if m.meta_nbytes + WORD_NBYTES > self.piece:
            raise ValueError(f"the dtype and shape of this message take {m.meta_nbytes} bytes, which do not fit into a "
                             f"frame of {self.piece}: make the channel larger")
        cdef int outcome = self.try_room(0, wanted)
        self.unsent_nbytes = m.load.nbytes
        if outcome == READY:
            start_stream(m)
        return outcome

    # ---- with a timeout ----

    cdef int send_message(self, message_t *m, int64_t timeout_ns) except -1:
        """READY, LATE or DROPPED. A message is streamed only if the call may wait."""
        cdef uint64_t wanted
        cdef int outcome
        cdef bint is_whole = self.is_whole(m, timeout_ns != 0)
        cdef int64_t deadline_ns = 0
        while True:
            outcome = self.try_whole(m, &wanted) if is_whole else self.try_begin_stream(m, &wanted)
            if outcome == READY:
                break
            if deadline_ns == 0:           # a message for which there is room needs no look at the clock
                deadline_ns = deadline_of(timeout_ns)
            outcome = self.await_room(wanted, left_until(deadline_ns, timeout_ns))
            if outcome != READY:
                return outcome
        if is_whole:
            return READY
        if self.cancelled != NULL:
            return self.send_stream(m, -1)
        return self.send_stream(m, timeout_ns if deadline_ns == 0 else left_until(deadline_ns, timeout_ns))

    cdef int leave_blocks(self, object departure, message_t *m, bint may_wait, int64_t timeout_ns) except -1:
        """Leave the blocks of the message that is sent next: READY; LATE; DROPPED; or NO_ROOM: none in the crate.

        Before that there is room for the message, or the beginning of a stream: no blocks are left for nothing.
        """
        cdef uint64_t nbytes = m.load.nbytes if self.is_whole(m, may_wait) else 0, wanted
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef int outcome
        if self._channel.crate is None:
            return READY
        while self.try_room(nbytes, &wanted) != READY:
            outcome = self.await_room(wanted, left_until(deadline_ns, timeout_ns))
            if outcome != READY:
                return outcome
        timeout_ns = left_until(deadline_ns, timeout_ns) if self.policy == WAITS else 0
        self.is_busy = True
        try:
            if self._channel.crate.put(departure, timeout_ns):
                return READY
        finally:
            self.is_busy = False
        if self.policy == WAITS:
            return NO_ROOM
        self.ring.sent.dropped += 1
        return DROPPED

    cdef int hold_blocks(self, object departure) except -1:
        """Hold the blocks of the message that was just sent, unless they were left in a crate."""
        self._channel.hold_blocks(self.ring.sent.messages, departure, _taken_messages)
        return 0

    cdef int await_room(self, uint64_t wanted, int64_t timeout_ns) except -1:
        return self.make_room(wanted, max(wanted, self.p.capacity // 4), timeout_ns)

    cdef int send_stream(self, message_t *m, int64_t timeout_ns) except -1:
        """Send the pieces; after an exception or a timeout in the middle the receiver drops them."""
        cdef stream_t stream
        cdef int outcome = NO_ROOM
        stream.m, stream.timeout_ns, stream.deadline_ns, stream.needed = m, timeout_ns, deadline_of(timeout_ns), 0
        self.note_timeout(timeout_ns)
        try:
            while outcome == NO_ROOM:
                if stream.needed:          # in a broadcast
                    outcome = self.await_room(stream.needed, left_until(stream.deadline_ns, timeout_ns))
                    if outcome != READY:
                        return outcome
                outcome = drive(push_pieces, self, &stream, left_until(stream.deadline_ns, timeout_ns), &self.is_busy,
                                self.watch.writes_notes)
            if outcome == RING_CORRUPT:
                raise self.corrupt()
            if outcome == GONE:
                raise self.peer_lost()
            return outcome
        finally:
            self.end_send(m)

    cdef int put_pieces(self, message_t *m, uint64_t *needed, int64_t until_ns) noexcept nogil:
        """READY: all pieces are in the ring; LATE: ``needed`` slots must be free first; UNREADY: it is ``until_ns``; or
        RING_CORRUPT."""
        cdef uint64_t nbytes
        cdef int64_t words
        cdef char *to
        while m.load.nbytes:
            nbytes = min(m.load.nbytes, self.piece)
            to = open_frame(&self.p, m.load.word | stores_of_frame(&self.p, nbytes), nbytes, &words)
            if to == NULL:
                needed[0] = words
                return RING_CORRUPT if words == RING_CORRUPT else LATE
            put_load(&self.p, to, &m.load, nbytes)
            m.load.nbytes -= nbytes
            m.load.word = word_of(PIECE)
            announce(self, m.load.nbytes == 0)
            if m.load.nbytes and now_ns() >= until_ns:
                return UNREADY
        return READY

    cdef void end_send(self, message_t *m) noexcept:
        if m.is_streamed:
            self.is_busy = False

    # ---- one message ----

    @cython.critical_section
    def send(self, x, timeout=None):
        """Send bytes or an array.

        Parameters
        ----------
        x : bytes-like or array
            ``bytes``, ``bytearray``, a ``memoryview`` of bytes: received as ``bytes``. Any array on the CPU (NumPy,
            ml_dtypes, DLPack, the buffer protocol; structured dtypes too): received as an ndarray of that dtype and
            shape. It may be changed after the call. It may have any size: a message longer than the ring streams
            through it.
        timeout : float, optional
            Seconds to wait for room; None for ever, 0 not at all.

        Returns
        -------
        bool
            True; False if the channel has dropped the message. In a broadcast an int: the number of receivers that get
            it, ends that no process has taken yet included.

        Raises
        ------
        queue.Full
            No room in time. No receiver gets any part of this message.
        PeerLostError
            The receiver has closed, or died; in a broadcast, all receivers have. On a named channel a new one may come;
            then sending continues.
        TypeError, ValueError
            Neither bytes nor an array, or too long for a call that may not wait. Nothing was sent.
        """
        cdef message_t m
        cdef int64_t timeout_ns = -1 if timeout is None else timeout_to_ns(timeout)
        if PyBytes_CheckExact(x) and put_bytes(self, x):
            return True if not self.is_broadcast else self.reached()
        self.require_idle()
        _keeper = encode(x, &m)
        return self.send_encoded(&m, timeout_ns)

    cdef object send_encoded(self, message_t *m, int64_t timeout_ns):
        self.require_idle()      # again: encoding may have run Python code, which used this end
        cdef int outcome = self.send_message(m, timeout_ns)
        if outcome == LATE:
            raise self.full()
        return self.reached() if outcome == READY else False

    @cython.critical_section
    def try_send(self, x):
        """Send bytes or an array if there is room for the whole message now. Raises as `send`.

        Parameters
        ----------
        x : bytes-like or array
            As in `send`; at most half the capacity.

        Returns
        -------
        bool
            False if there is no room: nothing was sent.
        """
        cdef message_t m
        if PyBytes_CheckExact(x) and put_bytes(self, x):
            return True
        self.require_idle()
        _keeper = encode(x, &m)
        self.require_idle()
        return self.send_message(&m, 0) == READY

    @cython.critical_section
    def send_object(self, obj, timeout=None):
        """Send a Python object by pickle; large buffers inside it (arrays) are not copied into the pickle stream.

        Parameters
        ----------
        obj : object
            Anything that pickles.
        timeout : float, optional
            As in `send`.

        Returns
        -------
        bool
            As in `send`.

        Raises
        ------
        ObjectError
            The object does not pickle. Nothing was sent.
        ValueError
            The channel was made with ``allow_pickle=False``.
        queue.Full, PeerLostError
            As in `send`.
        """
        cdef message_t m
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef int outcome
        self.require_idle()
        pickled = pickle_object(obj, self._channel)
        _keeper = encode_pickled(pickled, &m)
        if pickled.flight is not None:
            self.require_idle()
            outcome = self.leave_blocks(pickled.flight, &m, timeout_ns != 0, timeout_ns)
            if outcome != READY:
                if outcome == LATE:
                    raise self.full()
                if outcome == NO_ROOM:
                    raise too_many_blocks()
                return False
            timeout_ns = left_until(deadline_ns, timeout_ns)
        sent = self.send_encoded(&m, timeout_ns)
        if sent is not False and pickled.flight is not None:
            self.hold_blocks(pickled.flight)
        return sent

    def send_async(self, x):
        """Await room for bytes or an array, and send them, in an event loop of asyncio.

        Parameters
        ----------
        x : bytes-like or array
            As in `send`, of any size; it must not be changed before it is sent.

        Returns
        -------
        coroutine
            Raises as `send`. If it is cancelled, nothing was sent.
        """
        return self._send_in_steps(x, False)

    def send_object_async(self, obj):
        """Await room for a Python object, and send it, in an event loop of asyncio.

        Parameters
        ----------
        obj : object
            As in `send_object`; large buffers inside it must not be changed before it is sent.

        Returns
        -------
        coroutine
            Raises as `send_object`. If it is cancelled, nothing was sent.
        """
        return self._send_in_steps(pickle_object(obj, self._channel), True)

    async def _send_in_steps(self, x, bint is_pickled):
        cdef message_t m
        cdef int outcome
        self.fileno()      # before the first step: in the middle of a message it could not be made
        _keeper = encode_pickled(x, &m) if is_pickled else encode(x, &m)
        while is_pickled and x.flight is not None:
            self.require_idle()
            outcome = self.leave_blocks(x.flight, &m, True, 0)
            if outcome == DROPPED:
                return
            if outcome == READY:
                break
            await aio.pause()
        try:
            while self.take_step(&m) == LATE:
                await self._room()
        finally:
            self.end_send(&m)
        if is_pickled and x.flight is not None:
            self.hold_blocks(x.flight)

    @cython.critical_section
    cdef int take_step(self, message_t *m) except -1:
        """Send a message, or its next pieces, without waiting: LATE if there is no room for the rest, or it takes long.

        The caller repeats it until it is not LATE; then, or to give the message up, calls `end_send`. In between no
        other call of this end is possible if a part of the message is in the ring.
        """
        cdef uint64_t wanted = 0
        cdef int outcome = READY
        while True:
            if not m.is_streamed:      # this end may have been closed meanwhile
                self.require_idle()
                if self.is_whole(m, True):
                    outcome = self.try_whole(m, &wanted)
                else:
                    outcome = self.try_begin_stream(m, &wanted)
            if m.is_streamed:
                self.is_busy = True
                with nogil:
                    outcome = self.put_pieces(m, &wanted, now_ns() + LONGEST_COPY_NS)
                if outcome == RING_CORRUPT:
                    raise self.corrupt()
                if outcome == UNREADY:     # the descriptor is readable: other tasks run, and this one continues
                    return LATE
            if outcome == LATE:        # looks again, and arms the notifier
                outcome = self.await_room(wanted, 0)
                if outcome == READY:
                    continue
            return outcome

    # ---- several at a time, and in place ----

    @cython.critical_section
    def send_many(self, messages, timeout=None):
        """Send several messages, announced together as far as there is room.

        Raises as `send`; the messages before the one that raises were sent.

        Parameters
        ----------
        messages : iterable of bytes-like or array
        timeout : float, optional
            Seconds to wait for room in all; None for ever, 0 not at all.

        Returns
        -------
        int
            The number of messages sent, from the first one on; fewer than ``messages`` has only after the timeout, or
            if the channel drops.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef int64_t count = 0, needed
        cdef int outcome
        cdef char *to
        cdef message_t m
        self.require_idle()
        try:
            for x in messages:
                to = NULL
                if PyBytes_CheckExact(x) and is_clear(self) and <uint64_t>PyBytes_GET_SIZE(x) <= self.piece:
                    if self.quiet < QUIET_MAX and self.policy == WAITS:
                        to = open_frame(&self.p, word_of(BYTES) | stores_of_frame(&self.p, PyBytes_GET_SIZE(x)),
                                        PyBytes_GET_SIZE(x), &needed)
                if to != NULL:
                    copy_in(&self.p, to, PyBytes_AS_STRING(x), PyBytes_GET_SIZE(x))
                    self.p.tail += self.p.reserved      # only here: one store announces all of them
                    self.p.reserved = 0
                    self.quiet += 1
                    count += 1
                    continue
                self.announce_quiet()
                self.require_idle()
                _keeper = encode(x, &m)
                self.require_idle()
                outcome = self.send_message(&m, left_until(deadline_ns, timeout_ns))
                if outcome == LATE:
                    break
                count += outcome == READY
                PyErr_CheckSignals()      # a channel that drops never waits, and the iterable may have no end
        finally:
            self.announce_quiet()
        return count

    cdef void announce_quiet(self) noexcept:
        """Announce the messages that `send_many` has put into the ring; not in a child that the iterable has forked."""
        if self.quiet and self.is_taken and self.generation == fork_generation():
            self.p.reserved = 0      # a lease that the iterable has left open stays open: `commit` knows its size
            announce(self, self.quiet)
        self.quiet = 0

    @cython.critical_section
    def reserve(self, shape, dtype=None, timeout=None):
        """Lease memory of the ring, to write a message in place.

        Parameters
        ----------
        shape : int or tuple of int
            The shape of the array to write, which may take at most half the capacity.
        dtype : dtype, optional
            None: uint8, and the message is received as ``bytes``; else as an array.
        timeout : float, optional
            As in `send`.

        Returns
        -------
        Lease
            Behaves as a writable array of undefined content. It ends with `commit` or `abort`; arrays and
            views taken from it must be gone by then.

        Raises
        ------
        queue.Full, PeerLostError
            As in `send`; ``queue.Full`` also if the channel drops instead of waiting.
        TypeError, ValueError
            No array can have that shape and dtype, or it is too large; or another lease is open.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef uint64_t wanted
        shape = as_shape(shape)
        while self.try_reserve(shape, dtype, &wanted) != READY:
            if self.await_room(wanted, left_until(deadline_ns, timeout_ns)) != READY:
                raise self.full()
        return self.lease

    cdef int try_reserve(self, object shape, object dtype, uint64_t *wanted) except -1:
        """READY: there is a lease; or LATE: ``wanted`` slots must be free first."""
        cdef uint64_t meta_nbytes, nbytes
        cdef char *to
        cdef int outcome
        kind = np.dtype(np.uint8 if dtype is None else dtype)
        if not is_array_shape(shape, kind.itemsize):
            raise ValueError(f"shape={shape}: no array of {kind} can have it")
        word, meta = (word_of(BYTES), b"") if dtype is None else word_and_meta(kind, shape)
        nbytes = prod(shape) * kind.itemsize
        meta_nbytes = len(meta)
        self.require_idle()
        outcome = self.try_open(word, meta_nbytes + nbytes, &to, wanted)
        if outcome == READY:
            memcpy(to, PyBytes_AS_STRING(meta), meta_nbytes)
            self.reserved_word = (<uint64_t *>to) - 1
            self.reserved_meta = meta_nbytes
            self.reserved_nwords = self.p.reserved
            self.lease = make_lease(self, self.memory, to + meta_nbytes, kind, shape, False)
        return outcome

    @cython.critical_section
    def commit(self, count=None):
        """Send the reserved message, and end the lease.

        Parameters
        ----------
        count : int, optional
            The length to send along the first axis; by default all of it.

        Returns
        -------
        bool
            As `send` returns.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was sent; delete them and call again.
        ValueError
            Nothing is reserved, or less than ``count``.
        """
        cdef uint64_t nbytes, before
        count = int_or_none(count)
        require_lease(self)
        cdef Lease lease = self.lease
        shape = lease.shape
        if count is not None and not shape:
            raise ValueError(f"count={count}: this lease holds a single value; commit() it without a count")
        count = checked_part(count, shape[0] if shape else 1)
        nbytes = self.reserved_meta + <uint64_t>lease.nbytes
        self.end_lease()
        before = self.reserved_nwords - nwords_of(nbytes)
        if shape and count < shape[0]:
            nbytes -= (<uint64_t>lease.dtype.itemsize) * <uint64_t>prod(shape[1:]) * <uint64_t>(shape[0] - count)
            if kind_of(self.reserved_word[0]) == ARRAY and self.reserved_meta:
                self.reserved_word[2 if code_of(self.reserved_word[0]) == OTHER_DTYPE else 1] = count
            self.reserved_word[0] = self.reserved_word[0] >> 32 << 32 | nbytes
        self.p.reserved = before + nwords_of(nbytes)
        announce(self, 1)
        return self.reached()

    # ---- state ----

    @property
    def capacity_nbytes(self):
        """Size of the ring in bytes, headers included."""
        return self.ring.nslots * WORD_NBYTES

    @property
    def longest_nbytes(self):
        """Bytes of the longest message in one piece; longer ones stream, and `try_send` raises `ValueError`."""
        return longest_frame(self.ring.nslots)


cdef int push_pieces(object end, void *what, patience_t *patience) noexcept nogil:
    """A step of a stream (core/ring/blocking.pxd): READY, LATE, GONE, RING_CORRUPT or UNREADY; NO_ROOM in a
    broadcast."""
    cdef stream_t *stream = <stream_t *>what
    cdef awaited_t a
    cdef uint64_t base
    cdef int outcome
    while True:
        if (<Sender>end).cancelled != NULL and load_relaxed_u32((<Sender>end).cancelled):
            return LATE
        outcome = (<Sender>end).put_pieces(stream.m, &stream.needed, now_ns() + LONGEST_COPY_NS)
        if outcome != LATE:
            return outcome
        if (<Sender>end).is_broadcast:
            return NO_ROOM
        base = (<Sender>end).p.tail - (<Sender>end).p.capacity
        a.watch, a.counter = &(<Sender>end).watch, &(<Sender>end).ring.heads[0].head
        a.until = base + stream.needed
        a.wake_at = base + max(stream.needed, (<Sender>end).p.capacity // 4)
        outcome = await_any(&a, 1, patience)
        if outcome != READY:
            return outcome
        be_patient(patience, left_until(stream.deadline_ns, stream.timeout_ns))


cdef tuple as_shape(object shape):
    try:
        return (index(shape),)
    except TypeError:
        pass
    try:
        return tuple([index(extent) for extent in shape])
    except TypeError:
        raise TypeError(f"shape={shape!r}: must be an int, or a sequence of ints") from None
