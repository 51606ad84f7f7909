"""The sending end of a channel of messages."""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import queue
from math import prod

import numpy as np

cimport numpy as cnp

from shmring.arrays.array_view cimport array_t, fast_array, source_array
from shmring.arrays.outputs cimport shape_of
from shmring._c.atomics cimport load_relaxed_u64, store_relaxed_u64
from shmring.channels.endpoint cimport DROPS_OLDEST, End, is_gone, timeout_of
from shmring._c.faults cimport fault_point
from shmring.ring.framing cimport (ARRAY, BYTES, CUT, OBJECT, OTHER_DTYPE, PIECE, WORD_NBYTES, as_long, code_of,
                             copy_payload, frame_needs, kind_of, load_t, longest_frame, nwords_of, open_frame, part_t,
                             put_load, word_of)
from shmring.arrays.lease cimport Lease, make_lease
from shmring.sync.liveness cimport fork_generation
from shmring.ring.overwrite cimport overwrite_frames
from shmring.ring.spsc cimport (RING_CORRUPT, producer_t, ring_abort, ring_attach_producer, ring_close_producer, ring_commit,
                           ring_resume_producer)
from shmring.ring.blocking cimport GONE, LATE, await_counter, wake_peer, wake_peer_at_once
from shmring.sync.backoff cimport be_patient, now_ns, patience_t
from shmring.sync.group cimport READY

from shmring.channels import aio as asynchronous

from shmring.arrays import dtype_codec as contents
from shmring.errors import ObjectError
from shmring.arrays.pickle5 import pack

cnp.import_array()

cdef enum:
    PIECE_NBYTES = 128 << 10       # of a long message: both ends copy at the same time, within the second-level cache
    PIECE_NBYTES_LEAST = 1024
    ENCLOSURE_ALIGNMENT = 16
    QUIET_MAX = 64                 # messages put in before they are announced together

cdef char[ENCLOSURE_ALIGNMENT] ZEROS      # as C leaves them


# A message in hand, with room for the parts of most. Part 0 is its length, which only long messages are told in words.
ctypedef struct message_t:
    load_t load
    part_t room[4]
    uint64_t meta_nbytes           # what the receiver must have before it can provide for the rest
    uint64_t length
    uint64_t words[1]


@cython.final
@cython.no_gc
cdef class Sender(End):
    """The sending end of a channel of messages; made by `shmring.channel` and `shmring.open_channel`.

    A message is bytes, an array, or a Python object; the receiver gets what was sent. Belongs to the process that uses
    it first, and to one thread at a time.
    """

    cdef producer_t p
    cdef uint64_t longest          # bytes of the longest frame
    cdef uint64_t piece            # bytes of a piece of a long message
    cdef uint64_t *reserved_word   # of the frame that is lent: its word,
    cdef uint64_t reserved_meta    # bytes before its content,
    cdef uint64_t reserved_nwords  # and what to commit for all of it
    cdef bint must_cut             # a message was given up, or its sender died over it: say so before the next

    cdef int attach(self, bint again) noexcept:
        cdef int code = ring_attach_producer(&self.p, self.ring, self.ring_nbytes, again, not self.is_lent)
        if code == 0:
            self.longest = longest_frame(self.p.capacity)
            # Several are under way at once, but where they would be so small that their words weigh as much.
            self.piece = min(min(self.longest, <uint64_t>PIECE_NBYTES),
                             max(self.longest // 4 // WORD_NBYTES * WORD_NBYTES, <uint64_t>PIECE_NBYTES_LEAST))
            self.must_cut = self.p.tail != 0
        return code

    cdef void resume(self, bint must_cut) noexcept:
        if self.p.tail != load_relaxed_u64(&self.ring.tail):     # else nobody else has sent since
            ring_resume_producer(&self.p)
        self.must_cut = must_cut

    cdef void leave(self, bint in_good_order) noexcept:
        if self.is_lent:
            return
        if self.must_cut and in_good_order:
            self.say_cut()
        ring_close_producer(&self.p, in_good_order)
        wake_peer_at_once(&self.watch)

    # ---- sending ----

    def send(self, x, timeout=None):
        """Send bytes or an array.

        Parameters
        ----------
        x : bytes-like or array
            ``bytes``, ``bytearray``, a ``memoryview`` of bytes: received as ``bytes``. Any array on the CPU (NumPy,
            ml_dtypes, DLPack, the buffer protocol; structured dtypes too): received as an ndarray of that dtype and
            shape. It may be changed after the call. Of any size: what is longer than the ring streams through it.
        timeout : float, optional
            Seconds to wait for room; None for ever, 0 not at all.

        Returns
        -------
        bool
            True; False if the channel drops what does not fit, and this message did not.

        Raises
        ------
        queue.Full
            No room in time. The receiver will see nothing of this message.
        PeerLostError
            The receiver has closed, or died. On a named channel a new one may come, and sending goes on.
        TypeError, ValueError
            Not bytes nor an array, or too long for a call that may not wait. Nothing was sent.
        """
        cdef message_t m
        cdef int64_t needed
        cdef char *to
        cdef int64_t timeout_ns = -1 if timeout is None else timeout_of(timeout)
        # The way of most messages: they are bytes, nothing is in the way, and there is room.
        if PyBytes_CheckExact(x) and self.is_clear():
            if <uint64_t>PyBytes_GET_SIZE(x) <= self.piece and not is_gone(self.watch.other):
                to = open_frame(&self.p, word_of(BYTES), PyBytes_GET_SIZE(x), &needed)
                if to != NULL:
                    copy_payload(to, PyBytes_AS_STRING(x), PyBytes_GET_SIZE(x))
                    self.announce(1)
                    return True
        self.require_idle()
        _keeper = self.load(x, &m)
        return self.send_load(&m, timeout_ns)

    def send_async(self, x):
        """Await room for bytes or an array, and send it, in an event loop of asyncio.

        Parameters
        ----------
        x : bytes-like or array
            As in `send`, of any size; it must not be changed before it is sent.

        Returns
        -------
        coroutine
            Raises as `send` does. Cancelled, it has sent nothing.
        """
        return asynchronous.by_and_by(self, self._by_and_by(x))

    def send_object_async(self, obj):
        """Await room for a Python object, and send it, in an event loop of asyncio.

        Parameters
        ----------
        obj : object
            As in `send_object`; large buffers inside it must not be changed before it is sent.

        Returns
        -------
        coroutine
            Raises as `send_object` does. Cancelled, it has sent nothing.
        """
        return asynchronous.by_and_by(self, self._by_and_by(self._packed(obj), True))

    def try_send(self, x):
        """Send bytes or an array if there is room for all of it now.

        Parameters
        ----------
        x : bytes-like or array
            As in `send`; at most half the capacity.

        Returns
        -------
        bool
            False if there is no room; nothing was sent then.

        Raises
        ------
        PeerLostError, TypeError, ValueError
            As in `send`.
        """
        try:
            return self.send(x, 0)
        except queue.Full:
            return False

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
            It does not pickle. Nothing was sent.
        ValueError
            The channel was made with ``allow_pickle=False``.
        queue.Full, PeerLostError
            As in `send`.
        """
        self.require_idle()
        return self._send_pickled(self._packed(obj), timeout)

    def _packed(self, obj):
        """The pickled of an object, for `_send_pickled`; raises as `send_object` does."""
        if not self.channel.allow_pickle:
            raise ValueError("made with allow_pickle=False, this channel carries no objects")
        try:
            return pack(obj)
        except Exception as error:
            raise ObjectError(f"cannot pickle this object: {type(error).__name__}: {error}") from error

    def _send_pickled(self, pickled, timeout=None):
        """Send what `_packed` gave, as `send_object` does."""
        cdef message_t m
        self.require_idle()
        _keeper = self.load_pickled(pickled, &m)
        return self.send_load(&m, timeout_of(timeout))

    # ---- a message as parts ----

    cdef object load(self, object x, message_t *m):
        """Fill in what is to be sent; return what keeps it alive."""
        cdef array_t a
        if isinstance(x, str):
            raise TypeError("a str has no bytes of its own: encode it, or send_object() it")
        if isinstance(x, memoryview) and x.format in ("B", "b", "c") and x.ndim == 1:
            x = np.frombuffer(x if x.c_contiguous else bytes(x), np.uint8) if x.nbytes else b""
            return self.load_bytes(x, m)
        if isinstance(x, (bytes, bytearray)):
            return self.load_bytes(np.frombuffer(x, np.uint8) if len(x) else x, m)
        if fast_array(x, &a, False):
            begin(m, word_of(ARRAY, a.dtype, cnp.PyArray_NDIM(x)))
            if cnp.PyArray_NDIM(x) != 1:
                add_part(m, cnp.PyArray_DIMS(x), cnp.PyArray_NDIM(x) * sizeof(cnp.npy_intp))
            m.meta_nbytes = m.load.nbytes
            add_part(m, a.data, a.nbytes)
            return x
        return self.load_unusual(x, m)

    cdef object load_bytes(self, object x, message_t *m):
        begin(m, word_of(BYTES))
        if isinstance(x, np.ndarray):
            add_part(m, cnp.PyArray_DATA(x), cnp.PyArray_NBYTES(x))
        return x

    cdef object load_unusual(self, object x, message_t *m):
        """Arrays that are not plain: strided, foreign, or of a type that has no number."""
        cdef array_t a
        if isinstance(x, np.ndarray):
            keeper = np.asarray(x, order="C")
            word, meta = word_and_meta(x.dtype, x.shape)
            a.data, a.nbytes = cnp.PyArray_DATA(keeper), cnp.PyArray_NBYTES(keeper)
        else:
            keeper = source_array(x, &a)
            word, meta = word_and_meta(a.dtype, shape_of(x))
        begin(m, word)
        add_part(m, PyBytes_AS_STRING(meta), PyBytes_GET_SIZE(meta))
        m.meta_nbytes = m.load.nbytes
        add_part(m, a.data, a.nbytes)
        return keeper, meta, x

    cdef object load_pickled(self, object pickled, message_t *m):
        """The letter's length, the letter, and each enclosure where its elements will be aligned."""
        cdef uint64_t at = 0, gap
        buffers = [np.frombuffer(buffer, np.uint8) for buffer in (pickled.stream, *pickled.buffers)]
        room = bytearray((2 + 2 * len(buffers)) * sizeof(part_t))
        begin(m, word_of(OBJECT))
        m.load.parts = <part_t *>PyByteArray_AS_STRING(room)
        m.load.parts[0] = m.room[0]
        m.words[0] = cnp.PyArray_NBYTES(buffers[0])
        add_part(m, m.words, WORD_NBYTES)
        m.meta_nbytes = m.load.nbytes
        for buffer in buffers:
            gap = -at & (ENCLOSURE_ALIGNMENT - 1)
            add_part(m, ZEROS, gap)
            add_part(m, cnp.PyArray_DATA(buffer), cnp.PyArray_NBYTES(buffer))
            at += gap + <uint64_t>cnp.PyArray_NBYTES(buffer)
        return buffers, room

    # ---- a message into the ring ----

    cdef inline bint is_clear(self) noexcept:
        """Whether nothing is in the way of a call."""
        return (self.is_taken and not self.is_busy and not self.must_cut and self.lease is None
                and self.generation == fork_generation())

    cdef inline void announce(self, uint64_t nmessages) noexcept nogil:
        fault_point("announce")
        store_relaxed_u64(&self.ring.sent.messages, self.ring.sent.messages + nmessages)
        ring_commit(&self.p, self.p.reserved)
        fault_point("announced")
        wake_peer(&self.watch, self.p.tail)

    cdef bint say_cut(self) noexcept:
        cdef int64_t needed
        if open_frame(&self.p, word_of(CUT), 0, &needed) == NULL:
            return False
        self.announce(0)
        self.must_cut = False
        return True

    cdef object send_load(self, message_t *m, int64_t timeout_ns):
        cdef char *to
        if m.load.nbytes <= self.piece or self.drops or timeout_ns == 0:
            to = self.open(m.load.word, m.load.nbytes, timeout_ns)
            if to == NULL:
                return False
            if m.load.nbytes <= self.piece:
                put_load(to, &m.load, m.load.nbytes)
            else:
                self.is_busy = True
                with nogil:
                    put_load(to, &m.load, m.load.nbytes)
                self.is_busy = False
            self.announce(1)
        else:
            self.send_long(m, timeout_ns)
        return True

    cdef char *open(self, uint64_t word, uint64_t nbytes, int64_t timeout_ns) except? NULL:
        """Room for a whole frame: NULL without an error if the channel drops it."""
        cdef int64_t needed
        cdef char *to
        if nbytes > self.longest:
            raise ValueError(f"a message of {nbytes} bytes does not lie in this channel in one piece, "
                             f"{self.longest} bytes do: make it larger, or send() with time to wait, which streams")
        if is_gone(self.watch.other):
            raise self.lost()
        if self.must_cut and not self.say_cut():
            self.await_room(1, timeout_ns)
            self.say_cut()
        if self.drops:
            return self.open_or_drop(word, nbytes)
        while True:
            to = open_frame(&self.p, word, nbytes, &needed)
            if to != NULL:
                return to
            if needed == RING_CORRUPT:
                raise self.corrupt()
            self.await_room(needed, timeout_ns)

    cdef uint64_t room_at(self, uint64_t nwords) noexcept nogil:
        """The head at which so many words are free."""
        return self.p.tail + nwords - self.p.capacity

    cdef int await_room(self, uint64_t nwords, int64_t timeout_ns) except -1:
        cdef int outcome = self.wait_for(&self.ring.head, self.room_at(nwords),
                                         self.room_at(max(nwords, self.p.capacity // 4)), timeout_ns)
        if outcome == GONE:
            raise self.lost()
        if outcome == LATE:
            raise queue.Full
        return 0

    cdef int begin_long(self, message_t *m, int64_t timeout_ns) except -1:
        """Wait its turn, and raise what must be raised before anything is sent."""
        if m.meta_nbytes + WORD_NBYTES > self.piece:
            raise ValueError(f"what this message is takes {m.meta_nbytes} bytes to say: too much for this channel")
        self.open(0, 0, timeout_ns)      # waits its turn, and raises what must be raised before anything is sent
        ring_abort(&self.p)
        m.length = m.load.nbytes
        m.load.parts[0].address = <const char *>&m.length
        m.load.parts[0].nbytes = WORD_NBYTES
        m.load.part = 0
        m.load.nbytes += WORD_NBYTES
        m.load.word = as_long(m.load.word)
        return 0

    def _by_and_by(self, x, bint as_object=False, bint whole=False):
        """Send without ever waiting: a generator that stops where there is no room, and says how many slots it wants.

        Run to its end it has sent ``x`` (or, ``as_object``, what `_packed` gave), in one piece if ``whole``; closed
        before, none of it.
        """
        cdef message_t m
        cdef patience_t patience
        cdef int outcome
        cdef uint64_t wanted
        self.require_idle()
        _keeper = self.load_pickled(x, &m) if as_object else self.load(x, &m)
        if m.load.nbytes <= self.piece or self.drops or whole:
            while True:
                try:
                    self.send_load(&m, 0)
                    return
                except queue.Full:
                    yield frame_needs(&self.p, m.load.nbytes)
        while True:
            try:
                self.begin_long(&m, 0)
                break
            except queue.Full:
                yield frame_needs(&self.p, 0)
        self.is_busy = True
        try:
            while True:
                be_patient(&patience, 0)
                outcome = self.push_long(&m, 0, now_ns(), &patience)
                if outcome == READY:
                    return
                if outcome == GONE:
                    raise self.lost()
                if outcome == RING_CORRUPT:
                    raise self.corrupt()
                wanted = frame_needs(&self.p, min(m.load.nbytes, self.piece))
                if self.wait_for(&self.ring.head, self.room_at(wanted), 0, 0) != READY:
                    yield wanted
        finally:
            self.is_busy = False
            self.must_cut = m.load.nbytes > 0 and m.load.word == word_of(PIECE)

    cdef int send_long(self, message_t *m, int64_t timeout_ns) except -1:
        """Stream: a first frame with the length of all, then pieces. What stops it in the middle has it cut."""
        cdef patience_t patience
        cdef int64_t started = now_ns() if timeout_ns >= 0 else 0
        cdef int outcome
        self.begin_long(m, timeout_ns)
        self.hush()
        be_patient(&patience, timeout_ns)
        self.is_busy = True
        try:
            while True:
                with nogil:
                    outcome = self.push_long(m, timeout_ns, started, &patience)
                if outcome == READY:
                    return 0
                if outcome == GONE:
                    raise self.lost()
                if outcome == LATE:
                    raise queue.Full
                if outcome == RING_CORRUPT:
                    raise self.corrupt()
                PyErr_CheckSignals()
        finally:
            self.is_busy = False
            self.must_cut = m.load.nbytes > 0 and m.load.word == word_of(PIECE)

    cdef int push_long(self, message_t *m, int64_t timeout_ns, int64_t started, patience_t *patience) noexcept nogil:
        cdef int64_t needed
        cdef uint64_t nbytes
        cdef char *to
        cdef int outcome
        while m.load.nbytes:
            nbytes = min(m.load.nbytes, self.piece)
            to = open_frame(&self.p, m.load.word, nbytes, &needed)
            if to != NULL:
                put_load(to, &m.load, nbytes)
                m.load.nbytes -= nbytes
                m.load.word = word_of(PIECE)
                self.announce(m.load.nbytes == 0)
                be_patient(patience, timeout_ns if timeout_ns < 0
                           else max(<int64_t>0, timeout_ns - (now_ns() - started)))
                continue
            if needed == RING_CORRUPT:
                return RING_CORRUPT
            outcome = await_counter(&self.watch, &self.ring.head, self.room_at(needed),
                                    self.room_at(max(<uint64_t>needed, self.p.capacity // 4)), patience)
            if outcome != READY:
                return outcome
        return READY

    # ---- dropping what does not fit ----

    cdef char *open_or_drop(self, uint64_t word, uint64_t nbytes) except? NULL:
        cdef int64_t needed
        cdef char *to = NULL
        cdef int has_room = 1
        if self.drops == DROPS_OLDEST:
            has_room = overwrite_frames(&self.p, frame_needs(&self.p, nbytes), &self.ring.sent.overwritten)
            needed = RING_CORRUPT if has_room < 0 else 0
        if has_room == 1:
            to = open_frame(&self.p, word, nbytes, &needed)
        if to == NULL:
            if needed == RING_CORRUPT:
                raise self.corrupt()
            self.ring.sent.dropped += 1
        return to

    # ---- several at a time, and in place ----

    def send_many(self, messages, timeout=None):
        """Send several messages, announced together as far as there is room.

        Parameters
        ----------
        messages : iterable of bytes-like or array
        timeout : float, optional
            Seconds to wait for room in all; None for ever, 0 not at all.

        Returns
        -------
        int
            How many went in, from the first one on; fewer than there are only if time ran out, or the channel drops.

        Raises
        ------
        PeerLostError, TypeError, ValueError
            As in `send`. Those before the one concerned were sent.
        """
        cdef int64_t timeout_ns = timeout_of(timeout), started = now_ns() if timeout_ns > 0 else 0
        cdef int64_t count = 0, needed, left
        cdef uint64_t quiet = 0      # how many were put in and not announced yet
        cdef char *to
        cdef message_t m
        self.require_idle()
        try:
            for x in messages:
                to = NULL
                if PyBytes_CheckExact(x) and self.is_clear() and <uint64_t>PyBytes_GET_SIZE(x) <= self.piece:
                    if quiet < QUIET_MAX and not self.drops:
                        to = open_frame(&self.p, word_of(BYTES), PyBytes_GET_SIZE(x), &needed)
                if to != NULL:
                    copy_payload(to, PyBytes_AS_STRING(x), PyBytes_GET_SIZE(x))
                    self.p.tail += self.p.reserved      # only here: all of them are announced by one store
                    self.p.reserved = 0
                    quiet += 1
                    count += 1
                    continue
                if quiet:
                    self.announce(quiet)
                    quiet = 0
                self.require_idle()
                _keeper = self.load(x, &m)
                left = timeout_ns if timeout_ns <= 0 else max(<int64_t>0, timeout_ns - (now_ns() - started))
                try:
                    count += self.send_load(&m, left)
                except queue.Full:
                    break
        finally:
            if quiet:
                self.announce(quiet)
        return count

    def reserve(self, shape, dtype=None, timeout=None):
        """Lend memory of the ring, to write a message in place.

        Parameters
        ----------
        shape : int or tuple of int
            Of the array to write; at most half the capacity.
        dtype : dtype, optional
            None: bytes, and it will be received as ``bytes``; else as an array.
        timeout : float, optional
            As in `send`.

        Returns
        -------
        Lease
            Behaves as a writable array; what it holds before is left over. It ends with `commit` or `abort`; arrays and
            views taken from it must be gone by then.

        Raises
        ------
        queue.Full, PeerLostError
            As in `send`; also ``queue.Full`` if the channel drops what does not fit.
        TypeError, ValueError
            No such array, or too large; or another lease is open.
        """
        cdef uint64_t meta_nbytes, nbytes
        cdef char *to
        self.require_idle()
        kind = np.dtype(np.uint8 if dtype is None else dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        word, meta = (word_of(BYTES), b"") if dtype is None else word_and_meta(kind, shape)
        nbytes = kind.itemsize
        for extent in shape:
            if extent < 0:
                raise ValueError(f"shape={shape}: no extent can be negative")
            nbytes *= extent
        meta_nbytes = len(meta)
        to = self.open(word, meta_nbytes + nbytes, timeout_of(timeout))
        if to == NULL:
            raise queue.Full
        memcpy(to, PyBytes_AS_STRING(meta), meta_nbytes)
        self.reserved_word = (<uint64_t *>to) - 1
        self.reserved_meta = meta_nbytes
        self.reserved_nwords = self.p.reserved
        self.lease = make_lease(self.mapping, to + meta_nbytes, kind, shape, False)
        return self.lease

    def commit(self, count=None):
        """Send what was reserved, and end the lease.

        Parameters
        ----------
        count : int, optional
            Only the first so many along the first axis.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was sent; delete them and call again.
        ValueError
            Nothing is reserved, or less than ``count``.
        """
        cdef uint64_t nbytes, before
        self.require_lease("reserved")
        cdef Lease lease = self.lease
        shape = lease.shape
        if count is not None and not (shape and 0 <= count <= shape[0]):
            raise ValueError(f"count={count}: a lease of shape {shape} has no first so many")
        nbytes = self.reserved_meta + <uint64_t>lease.nbytes
        lease.end()
        self.lease = None
        before = self.reserved_nwords - nwords_of(nbytes)
        if count is not None and count < shape[0]:
            nbytes -= (<uint64_t>lease.dtype.itemsize) * <uint64_t>prod(shape[1:]) * <uint64_t>(shape[0] - count)
            if kind_of(self.reserved_word[0]) == ARRAY and self.reserved_meta:
                self.reserved_word[2 if code_of(self.reserved_word[0]) == OTHER_DTYPE else 1] = count
            self.reserved_word[0] = self.reserved_word[0] >> 32 << 32 | nbytes
        self.p.reserved = before + nwords_of(nbytes)
        self.announce(1)

    def abort(self):
        """Give up what was reserved, and end the lease; the receiver never knows. Raises as `commit` does."""
        self.require_lease("reserved")
        self.lease.end()
        self.lease = None
        ring_abort(&self.p)

    # ---- how it stands ----

    def __len__(self):
        """Messages sent and not yet received: a hint, there may be fewer a moment later."""
        return max(0, <int64_t>(self.ring.sent.messages - self.ring.sent.overwritten - self.ring.received.messages))

    @property
    def capacity_nbytes(self):
        """Size of the ring in bytes, headers included."""
        return self.ring.nslots * WORD_NBYTES

    @property
    def longest_nbytes(self):
        """The longest message that lies in the ring in one piece; longer ones stream, and `try_send` refuses them."""
        return longest_frame(self.ring.nslots)

    @property
    def sent_count(self):
        """Messages ever sent into this channel."""
        return self.ring.sent.messages

    @property
    def dropped_count(self):
        """Messages ever dropped because they did not fit, or because newer ones did not."""
        return self.ring.sent.dropped + self.ring.sent.overwritten

    def __repr__(self):
        return f"<shmring.Sender of {self.channel.title}{', closed' if self.is_closed else ''}>"


cdef tuple word_and_meta(kind, tuple shape):
    """How an array of a dtype, or of one that has a number, begins."""
    cdef object code = kind if isinstance(kind, int) else contents.code_of_dtype(kind)
    extents = np.array(shape, np.int64).tobytes()
    if code is not None:
        return word_of(ARRAY, code, len(shape)), b"" if len(shape) == 1 else extents
    text = contents.describe(kind)
    padding = bytes((WORD_NBYTES - len(text) % WORD_NBYTES) % WORD_NBYTES)
    return word_of(ARRAY, OTHER_DTYPE, len(shape)), len(text).to_bytes(WORD_NBYTES, "little") + extents + text + padding


cdef void begin(message_t *m, uint64_t word) noexcept nogil:
    m.load.word = word
    m.load.parts = m.room
    m.load.nparts = 1
    m.load.part = 1
    m.load.offset = 0
    m.load.nbytes = 0
    m.meta_nbytes = 0


cdef void add_part(message_t *m, const void *address, uint64_t nbytes) noexcept nogil:
    if nbytes:
        m.load.parts[m.load.nparts].address = <const char *>address
        m.load.parts[m.load.nparts].nbytes = nbytes
        m.load.nparts += 1
        m.load.nbytes += nbytes
