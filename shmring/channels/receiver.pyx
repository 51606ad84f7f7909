"""The receiving end of a channel of messages."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import queue
import sys
from math import prod
from typing import NamedTuple

import numpy as np

cimport numpy as cnp

from shmring._c.atomics cimport load_relaxed_u64, store_relaxed_u64
from shmring.channels.endpoint cimport DROPS_OLDEST, End, timeout_of
from shmring._c.faults cimport fault_point
from shmring.ring.framing cimport (ALIGNED_NBYTES, BYTES, CUT, OBJECT, OTHER_DTYPE, PIECE, WORD_NBYTES, code_of,
                             copy_payload, frame_t, is_long, kind_of, leave_frame, ndim_of, next_frame)
from shmring.arrays.lease cimport borrow, borrowed_t, end_borrow, make_lease
from shmring.sync.liveness cimport fork_generation
from shmring.ring.overwrite cimport claim_next, give_up_claim
from shmring.ring.spsc cimport (END_CLOSED, RING_CORRUPT, consumer_t, ring_attach_consumer, ring_close_consumer,
                           ring_end_state, ring_release, ring_resume_consumer)
from shmring.ring.blocking cimport GONE, LATE, await_counter, wake_peer, wake_peer_at_once
from shmring.sync.backoff cimport be_patient, now_ns, patience_t
from shmring.sync.group cimport READY, UNREADY

from shmring.channels import aio as asynchronous

from shmring.arrays import dtype_codec as contents
from shmring.dtypes import DTYPES
from shmring.errors import EndOfStreamError, MessageTooLongError, ObjectError, PeerLostError, SegmentError
from shmring.arrays.pickle5 import buffer_sizes, unpack

cnp.import_array()

# What `look` finds.
cdef enum:
    BEGINS = 1
    COMPLETE = 2

cdef enum:
    ENCLOSURE_ALIGNMENT = 16
    QUIET_MAX = 64                 # messages taken before they are given back together
    LONG_COPY_NBYTES = 64 << 10    # from this size on the GIL is let go of while copying

UINT8 = np.dtype(np.uint8)
THEIRS = object()      # the target of a long message that goes straight into memory of the caller
cdef list numbered = [None] * len(DTYPES)      # dtypes by number, each once it was needed


class Packed(NamedTuple):
    """An object as it came: to be made by `Receiver._unpack`, where nobody waits for it."""

    content: np.ndarray
    letter_nbytes: int


@cython.final
@cython.no_gc
cdef class Receiver(End):
    """The receiving end of a channel of messages; made by `shmring.channel` and `shmring.open_channel`.

    Gives what was sent: ``bytes``, ndarrays, Python objects. Iterating over it ends when the sender has closed. Belongs
    to the process that uses it first, and to one thread at a time.
    """

    cdef consumer_t c
    cdef frame_t frame                 # the one that is peeked
    cdef object target                 # of a long message under way: what it becomes,
    cdef char *to                      # where its next bytes go,
    cdef uint64_t missing              # how many are still to come,
    cdef uint64_t content_nbytes       # of how many,
    cdef uint64_t word                 # what it is,
    cdef int64_t letter_nbytes         # and, if it is an object, how much of it is its letter
    cdef object plan                   # its dtype and shape
    cdef borrowed_t *into              # where the next long message may go, if a caller has said so
    cdef object assembled              # a long message that is complete and was not received yet, as (it,)
    cdef object failure                # an error to be raised by the next call
    cdef public bint _leaves_packed     # objects are given as `Packed`, for `_unpack`

    cdef int attach(self, bint again) noexcept:
        return ring_attach_consumer(&self.c, self.ring, self.ring_nbytes, again, not self.is_lent)

    cdef void resume(self, bint must_cut) noexcept:
        if self.c.head != load_relaxed_u64(&self.ring.head):     # others have received since
            self.target = None
        ring_resume_consumer(&self.c)      # always: what was given up may have been taken back from the tail

    cdef void leave(self, bint in_good_order) noexcept:
        if self.is_lent:
            return
        self.unclaim()
        ring_close_consumer(&self.c, in_good_order)
        wake_peer_at_once(&self.watch)

    # ---- receiving ----

    def recv(self, timeout=None):
        """Receive the next message.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        bytes, numpy.ndarray or object
            What was sent; arrays own their memory.

        Raises
        ------
        queue.Empty
            Nothing has come in time, or not all of a long message: it stays receivable.
        EndOfStreamError
            The sender has closed in good order and all that it sent was received.
        PeerLostError
            The sender has died, and all that it had sent was received. On a named channel a new one may come.
        ObjectError
            It is an object that cannot be made here. It has been received.
        SegmentError
            What is in the ring is no message.
        """
        cdef frame_t f
        cdef int64_t timeout_ns = -1 if timeout is None else timeout_of(timeout)
        # The way of most messages: nothing is in the way, and one is there that is bytes and lies in one piece.
        if self.is_clear() and next_frame(&self.c, &f) == 1 and f.word >> 32 == BYTES:
            message = bytes_of(&f)
            self.leave_message(&f)
            return message
        self.require_idle()
        return self.next_message(timeout_ns)

    def try_recv(self, default=None):
        """Receive the next message if there is one.

        Parameters
        ----------
        default : object
            What to return if there is none.

        Returns
        -------
        bytes, numpy.ndarray or object
            As in `recv`.

        Raises
        ------
        EndOfStreamError, PeerLostError, ObjectError, SegmentError
            As in `recv`.
        """
        try:
            return self.recv(0)
        except queue.Empty:
            return default

    def recv_async(self):
        """Await the next message, in an event loop of asyncio.

        Returns
        -------
        coroutine
            Of what `recv` gives; raises as it does. Cancelled, it has received nothing.
        """
        return asynchronous.when_ready(self, self.recv)

    def recv_into(self, out, timeout=None):
        """Receive the content of the next message, bytes or an array, into memory of one's own.

        Parameters
        ----------
        out : writable buffer or array
            Contiguous; at least as long as the message. It is filled from its beginning on.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        int
            Bytes received.

        Raises
        ------
        MessageTooLongError
            It is longer than ``out``. It stays receivable.
        TypeError
            It is an object, which stays receivable; or ``out`` is no writable memory.
        queue.Empty, EndOfStreamError, PeerLostError, SegmentError
            As in `recv`.
        """
        cdef borrowed_t b
        cdef uint64_t nbytes
        cdef int64_t timeout_ns = timeout_of(timeout)
        self.require_idle()
        # A bytearray could be resized while the GIL is let go of; not one that is exported.
        borrow(memoryview(out) if isinstance(out, bytearray) else out, &b, True)
        self.into = &b
        try:
            nbytes = self.receive_into(&b, timeout_ns)
        finally:
            self.into = NULL
            if self.target is THEIRS:
                self.move_in()
            end_borrow(&b)
        return nbytes

    def recv_many(self, count=None, timeout=None):
        """Receive the messages that are there; wait only for the first.

        Parameters
        ----------
        count : int, optional
            At most so many.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        list
            One message or more.

        Raises
        ------
        queue.Empty, EndOfStreamError, PeerLostError, ObjectError, SegmentError
            As in `recv`; what came before an error is returned first, and the error raised by the next call.
        """
        cdef Py_ssize_t most = sys.maxsize if count is None else count
        cdef list messages
        if most < 1:
            raise ValueError(f"count={count}: must be at least 1")
        messages = [self.recv(timeout)]
        try:
            while len(messages) < most:
                if self.is_clear():
                    self.append_bytes(messages, min(most - len(messages), QUIET_MAX))
                if len(messages) < most:
                    messages.append(self.recv(0))
        except ObjectError as error:
            self.failure = error       # the others will be raised again by themselves
        except (queue.Empty, EndOfStreamError, PeerLostError, SegmentError):
            pass
        return messages

    cdef int append_bytes(self, list messages, Py_ssize_t most) except -1:
        """Receive what is bytes and there, given back by one store."""
        cdef frame_t f
        cdef uint64_t count = 0
        try:
            while <Py_ssize_t>count < most and next_frame(&self.c, &f) == 1 and f.word >> 32 == BYTES:
                messages.append(bytes_of(&f))
                self.c.head += f.nwords
                count += 1
        finally:
            if count:
                store_relaxed_u64(&self.ring.received.messages, self.ring.received.messages + count)
                ring_release(&self.c, 0)
                wake_peer(&self.watch, self.c.head)
        return 0

    def peek(self, timeout=None):
        """Lend the next message where it lies, to read it in place.

        Parameters
        ----------
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        Lease
            Behaves as a read-only array; bytes as one of uint8. It ends with `release`; arrays and views taken from it
            must be gone by then. A message that came in pieces is put together in private memory first.

        Raises
        ------
        TypeError
            It is an object, which stays receivable.
        queue.Empty, EndOfStreamError, PeerLostError, SegmentError
            As in `recv`.
        """
        cdef frame_t f
        self.require_idle()
        if self.find(&f, timeout_of(timeout)) == BEGINS:
            if kind_of(f.word) == OBJECT:
                self.unclaim()
                raise TypeError("the next message is an object: recv() it")
            dtype, shape, skipped = self.content_of(&f, f.nbytes)
            self.frame = f
            self.lease = make_lease(self.mapping, <char *>f.bytes + <uint64_t>skipped, dtype, shape, True)
        else:
            (message,) = self.assembled
            if not isinstance(message, (bytes, np.ndarray)):
                raise TypeError("the next message is an object: recv() it")
            array = message if isinstance(message, np.ndarray) else np.frombuffer(message, np.uint8)
            self.lease = make_lease(message, <char *>cnp.PyArray_DATA(array), array.dtype, array.shape, True)
        return self.lease

    def release(self):
        """Give back what was peeked, which is received with that, and end the lease.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was given back; delete them and call again.
        ValueError
            Nothing is peeked.
        """
        self.require_lease("peeked")
        self.lease.end()
        self.lease = None
        if self.assembled is not None:
            self.assembled = None
        else:
            self.leave_message(&self.frame)

    def poll(self, timeout=0):
        """Whether `recv` would not have to wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for that; None for ever.

        Returns
        -------
        bool
            Also True at the end of the stream, and if the sender is lost, which `recv` then says.
        """
        cdef frame_t f
        self.require_idle()
        cdef int64_t timeout_ns = timeout_of(timeout)
        while True:
            if self.assembled is not None or self.failure is not None or self.look(&f):
                self.unclaim()
                return True
            outcome = self.wait_for(&self.ring.tail, self.c.head + 1, self.c.head + 1, timeout_ns)
            if outcome != READY:
                return outcome == GONE

    @property
    def ended(self):
        """Whether the sender has closed in good order and all was received, so that `recv` would say so."""
        cdef frame_t f
        self.require_idle()
        if ring_end_state(self.watch.other) != END_CLOSED or self.assembled is not None or self.failure is not None:
            return False
        is_over = not self.look(&f)
        self.unclaim()
        return is_over

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.recv()
        except EndOfStreamError:
            raise StopIteration from None

    # ---- frames ----

    cdef inline bint is_clear(self) noexcept:
        """Whether nothing is in the way of a call, and the next frame is simply the next one."""
        return (self.is_taken and not self.is_busy and self.lease is None and self.target is None
                and self.assembled is None and self.failure is None and self.drops != DROPS_OLDEST
                and self.generation == fork_generation())

    cdef inline void leave_message(self, frame_t *f) noexcept nogil:
        if self.is_lent:               # who is killed in between must not have counted what others will find
            self.give_frame_back(f)
            self.count_message()
        else:                          # the counter that is waited for last: one transfer of their line
            self.count_message()
            self.give_frame_back(f)

    cdef inline void count_message(self) noexcept nogil:
        store_relaxed_u64(&self.ring.received.messages, self.ring.received.messages + 1)
        if self.is_lent:               # a queue's putter may wait for this count
            wake_peer(&self.watch, self.c.head)

    cdef inline void give_frame_back(self, frame_t *f) noexcept nogil:
        fault_point("give")
        leave_frame(&self.c, f)
        fault_point("given")
        wake_peer(&self.watch, self.c.head)

    cdef int look(self, frame_t *f) except -1:
        """BEGINS: a message begins with this frame; COMPLETE: a long one is assembled; 0: neither, as yet."""
        cdef int found
        while True:
            if self.target is not None:
                found = self.pull(NULL)
                if found == UNREADY:
                    return 0
                if self.finish_long(found):
                    return COMPLETE
            found = 1 if self.drops != DROPS_OLDEST else min(claim_next(&self.c), 1)
            if found == 1:
                found = next_frame(&self.c, f)
            if found == 0:
                return 0
            if found < 0 or not BYTES <= kind_of(f.word) <= CUT:
                raise self.corrupt()
            if kind_of(f.word) == CUT or kind_of(f.word) == PIECE:     # of a message whose beginning we never had
                self.give_frame_back(f)
            elif is_long(f.word):
                self.begin_long(f)
            else:
                return BEGINS

    cdef int find(self, frame_t *f, int64_t timeout_ns) except -1:
        """Wait for a message. BEGINS or COMPLETE, as `look`; raises if none comes."""
        cdef int64_t started = now_ns() if timeout_ns > 0 else 0, left = timeout_ns
        cdef int outcome
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        while self.assembled is None:
            outcome = self.look(f)
            if outcome:
                return outcome
            if timeout_ns > 0:
                left = max(<int64_t>0, timeout_ns - (now_ns() - started))
            if self.target is not None and timeout_ns != 0:
                outcome = self.await_pieces(left)
            else:
                outcome = self.wait_for(&self.ring.tail, self.c.head + 1, self.c.head + 1, left)
            if outcome == LATE:
                raise queue.Empty
            if outcome == GONE:
                self.target = None
                raise self.gone()
        return COMPLETE

    cdef object next_message(self, int64_t timeout_ns):
        cdef frame_t f
        if self.find(&f, timeout_ns) == COMPLETE:
            (message,), self.assembled = self.assembled, None
            return message
        return self.take(&f)

    cdef void unclaim(self) noexcept:
        if self.drops == DROPS_OLDEST and self.lease is None:
            give_up_claim(&self.c)

    # ---- what a message is ----

    cdef tuple content_of(self, frame_t *f, uint64_t nbytes):
        """dtype, shape, and how many bytes stand before the content of a message of so many bytes."""
        cdef const int64_t *words = <const int64_t *>f.bytes
        cdef uint64_t meta_nbytes = 0, present = f.nbytes
        cdef int code = code_of(f.word), ndim = ndim_of(f.word)
        if is_long(f.word):
            words += 1
            present -= WORD_NBYTES
        if kind_of(f.word) == BYTES:
            return UINT8, (nbytes,), 0
        if kind_of(f.word) == OBJECT:
            if present < WORD_NBYTES or not 0 <= words[0] <= <int64_t>(nbytes - WORD_NBYTES):
                raise self.corrupt()
            return UINT8, (nbytes - WORD_NBYTES,), WORD_NBYTES
        text_nbytes = 0
        if code == OTHER_DTYPE:
            text_nbytes = words[0] if present >= WORD_NBYTES else -1
            meta_nbytes = WORD_NBYTES
        if ndim != 1 or code == OTHER_DTYPE:
            meta_nbytes += ndim * WORD_NBYTES
        padded = (text_nbytes + WORD_NBYTES - 1) // WORD_NBYTES * WORD_NBYTES
        if text_nbytes < 0 or meta_nbytes + padded > present:
            raise self.corrupt()
        if code == OTHER_DTYPE:
            dtype = contents.dtype_of((<const char *>words + meta_nbytes)[:text_nbytes])
        else:
            dtype = numbered_dtype(code)
        content_nbytes = nbytes - meta_nbytes - padded
        if ndim == 1 and code != OTHER_DTYPE:
            shape = (content_nbytes // dtype.itemsize,)
        else:
            words += code == OTHER_DTYPE
            shape = tuple([words[d] for d in range(ndim)])
        if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != content_nbytes:
            raise self.corrupt()
        return dtype, shape, meta_nbytes + padded

    cdef object take(self, frame_t *f):
        """Make what a frame says, and give the frame back."""
        cdef uint64_t skipped
        cdef void *to
        cdef const int64_t *words = <const int64_t *>f.bytes
        cdef int64_t letter_nbytes
        if kind_of(f.word) == BYTES:
            message = PyBytes_FromStringAndSize(NULL, f.nbytes)
            skipped, to = 0, PyBytes_AS_STRING(message)
        else:
            try:
                dtype, shape, skipped = self.content_of(f, f.nbytes)
            except TypeError:
                self.leave_message(f)
                raise
            message = np.empty(shape, dtype)
            to = cnp.PyArray_DATA(message)
            letter_nbytes = words[0] if kind_of(f.word) == OBJECT else 0
        self.copy(to, f.bytes + skipped, f.nbytes - skipped)
        self.leave_message(f)
        return self.unpacked(message, letter_nbytes) if kind_of(f.word) == OBJECT else message

    cdef int copy(self, void *to, const void *source, uint64_t nbytes) except -1:
        if nbytes < LONG_COPY_NBYTES:
            copy_payload(to, source, nbytes)
            return 0
        self.is_busy = True
        with nogil:
            copy_payload(to, source, nbytes)
        self.is_busy = False
        return 0

    cdef object unpacked(self, object content, int64_t letter_nbytes):
        return Packed(content, letter_nbytes) if self._leaves_packed else self._unpack(content, letter_nbytes)

    def _unpack(self, content, letter_nbytes):
        """The object whose letter and enclosures these bytes are; raises `ObjectError`."""
        if not self.channel.allow_pickle:
            raise ObjectError("an object has come, and this channel was made with allow_pickle=False; it was dropped")
        letter, at, enclosures = content[:letter_nbytes], letter_nbytes, []
        try:
            for nbytes in buffer_sizes(letter):
                at = (at + ENCLOSURE_ALIGNMENT - 1) // ENCLOSURE_ALIGNMENT * ENCLOSURE_ALIGNMENT
                enclosures.append(content[at:at + nbytes])
                at += nbytes
            return unpack(letter, enclosures)
        except Exception as error:
            raise ObjectError(f"the object cannot be made here: {type(error).__name__}: {error}") from error

    # ---- long messages ----

    cdef int begin_long(self, frame_t *f) except -1:
        """Provide for the whole of it, take its first part."""
        cdef uint64_t nbytes, skipped, here
        if f.nbytes < WORD_NBYTES:
            raise self.corrupt()
        nbytes = (<const uint64_t *>f.bytes)[0]
        dtype, shape, skipped = self.content_of(f, nbytes)
        self.letter_nbytes = (<const int64_t *>f.bytes)[1] if kind_of(f.word) == OBJECT else 0
        here = f.nbytes - WORD_NBYTES - skipped
        if here > nbytes - skipped:
            raise self.corrupt()
        self.word, self.plan, self.content_nbytes = f.word, (shape, dtype), nbytes - skipped
        if self.into == NULL or kind_of(f.word) == OBJECT:
            self.provide()
        else:
            self.require_room(self.content_nbytes, self.into)
            self.target, self.to = THEIRS, self.into.address
        self.missing = self.content_nbytes - here
        copy_payload(self.to, f.bytes + WORD_NBYTES + skipped, here)
        self.to += here
        self.give_frame_back(f)
        return 0

    cdef int provide(self) except -1:
        if kind_of(self.word) == BYTES:
            self.target = PyBytes_FromStringAndSize(NULL, self.content_nbytes)
            self.to = PyBytes_AS_STRING(self.target)
        else:
            self.target = np.empty(*self.plan)
            self.to = <char *>cnp.PyArray_DATA(self.target)
        return 0

    cdef int move_in(self) except -1:
        """The caller leaves before his message is complete: what has come of it moves into memory of our own."""
        cdef uint64_t here = self.content_nbytes - self.missing
        cdef const char *theirs = self.to - here
        self.target = None     # should there be no memory, it is given up
        self.provide()
        memcpy(self.to, theirs, here)
        self.to += here
        return 0

    cdef int pull(self, patience_t *patience) noexcept nogil:
        """Take the pieces that are there, and wait for more if there is patience. READY: no more pieces will come."""
        cdef frame_t f
        cdef int found, outcome
        while self.missing:
            found = next_frame(&self.c, &f)
            if found == 0:
                if patience == NULL:
                    return UNREADY
                outcome = await_counter(&self.watch, &self.ring.tail, self.c.head + 1, self.c.head + 1, patience)
                if outcome != READY:
                    return outcome
                be_patient(patience, patience.timeout_ns if patience.timeout_ns < 0
                           else max(<int64_t>0, patience.deadline_ns - now_ns()))
                continue
            if found < 0 or (kind_of(f.word) == PIECE and f.nbytes > self.missing):
                return RING_CORRUPT
            if kind_of(f.word) != PIECE:
                return READY
            copy_payload(self.to, f.bytes, f.nbytes)
            self.to += f.nbytes
            self.missing -= f.nbytes
            self.give_frame_back(&f)
        return READY

    cdef bint finish_long(self, int outcome) except -1:
        """After the last piece: whether it is complete; else its sender has given it up, and it is forgotten."""
        target, self.target = self.target, None
        if outcome == RING_CORRUPT:
            raise self.corrupt()
        if self.missing:
            return False
        self.count_message()
        self.assembled = (self.unpacked(target, self.letter_nbytes) if kind_of(self.word) == OBJECT else target,)
        return True

    cdef int await_pieces(self, int64_t timeout_ns) except -1:
        """READY when there are no more pieces, or GONE or LATE."""
        cdef patience_t patience
        cdef int outcome
        self.hush()
        be_patient(&patience, timeout_ns)
        self.is_busy = True
        try:
            while True:
                with nogil:
                    outcome = self.pull(&patience)
                if outcome != UNREADY:
                    return outcome
                PyErr_CheckSignals()
        finally:
            self.is_busy = False

    cdef uint64_t receive_into(self, borrowed_t *b, int64_t timeout_ns) except? 0:
        cdef frame_t f
        cdef uint64_t nbytes, skipped
        if self.find(&f, timeout_ns) == COMPLETE:
            (message,) = self.assembled
            if message is THEIRS:
                self.assembled = None
                return self.content_nbytes
            if not isinstance(message, (bytes, np.ndarray)):
                raise TypeError("the next message is an object: recv() it")
            source = message if isinstance(message, np.ndarray) else np.frombuffer(message, np.uint8)
            nbytes = cnp.PyArray_NBYTES(source)
            self.require_room(nbytes, b)
            self.copy(b.address, cnp.PyArray_DATA(source), nbytes)
            self.assembled = None
            return nbytes
        if kind_of(f.word) == OBJECT:
            self.unclaim()
            raise TypeError("the next message is an object: recv() it")
        skipped = self.content_of(&f, f.nbytes)[2]
        self.require_room(f.nbytes - skipped, b)
        self.copy(b.address, f.bytes + skipped, f.nbytes - skipped)
        self.leave_message(&f)
        return f.nbytes - skipped

    cdef int require_room(self, uint64_t nbytes, borrowed_t *b) except -1:
        if nbytes > b.nbytes:
            self.unclaim()
            raise MessageTooLongError(f"the next message has {nbytes} bytes, there is room for {b.nbytes}",
                                      nbytes=nbytes)
        return 0

    # ---- how it stands ----

    def __len__(self):
        """Messages sent and not yet received: a hint, there may be more a moment later."""
        return max(0, <int64_t>(self.ring.sent.messages - self.ring.sent.overwritten - self.ring.received.messages))

    @property
    def capacity_nbytes(self):
        """Size of the ring in bytes, headers included."""
        return self.ring.nslots * WORD_NBYTES

    @property
    def midway(self):
        """Whether the next message is a long one that has begun to come."""
        return self.target is not None

    @property
    def received_count(self):
        """Messages ever received from this channel."""
        return self.ring.received.messages

    @property
    def dropped_count(self):
        """Messages ever dropped because they did not fit, or because newer ones did not."""
        return self.ring.sent.dropped + self.ring.sent.overwritten

    def __repr__(self):
        return f"<shmring.Receiver of {self.channel.title}{', closed' if self.is_closed else ''}>"


cdef inline object bytes_of(frame_t *f):
    if f.nbytes < ALIGNED_NBYTES:
        return PyBytes_FromStringAndSize(f.bytes, f.nbytes)
    message = PyBytes_FromStringAndSize(NULL, f.nbytes)
    copy_payload(PyBytes_AS_STRING(message), f.bytes, f.nbytes)
    return message


cdef object numbered_dtype(int code):
    if code >= len(numbered):
        raise SegmentError(f"{code} is no element type")
    if numbered[code] is None:
        numbered[code] = contents.dtype_with_code(code)
    return numbered[code]
