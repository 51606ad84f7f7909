"""The receiving end of a channel of messages: whole frames, streams that are assembled from pieces, frames read in
place."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memcpy

import queue
from functools import partial

import numpy as np

from shmring.core.c.atomics cimport load_relaxed_u64, store_relaxed_u64
from shmring.core.arrays cimport numpy_api as cnp
from shmring.core.arrays.lease cimport borrow, borrowed_t, end_borrow, make_lease
from shmring.core.base.timeouts cimport checked_count, timeout_to_ns
from shmring.channels.message_codec cimport (LONG_COPY_NBYTES, LONGEST_COPY_NS, QUIET_MAX, bytes_of, decode_meta,
                                             taken_blocks, unpickle_block)
from shmring.core.ring.blocking cimport GONE, LATE, awaited_t, await_any, drive, wake_peer
from shmring.core.ring.end cimport require_lease
from shmring.core.ring.framing cimport (BYTES, OBJECT, PIECE, WORD_NBYTES, copy_out, frame_t, is_long, kind_of,
                                   next_frame)
from shmring.core.ring.spsc cimport RING_CORRUPT, ring_ready, ring_release, ring_resume_consumer
from shmring.core.sync.backoff cimport be_patient, deadline_of, left_until, now_ns
from shmring.core.sync.group cimport READY, UNREADY

from shmring.channels import aio
from shmring.channels.message_codec import unpickle_leased
from shmring.errors import EndOfStreamError, MessageTooLongError, ObjectError, PeerLostError, SegmentError

cnp.import_array()

CALLERS_MEMORY = object()      # the target of a stream that goes straight into memory of the caller


@cython.final
cdef class PickledContent:
    """A received object, not yet unpickled: see `unpickle_block` in channels/message_codec.pyx."""


@cython.final
@cython.no_gc
cdef class Receiver(RingReceiver):
    """The receiving end of a channel of messages; made by `shmring.channel`, `shmring.open_channel` and
    `shmring.broadcast_channel`; a `shmring.fan_in` has one for each sender.

    Messages are ``bytes``, ndarrays and Python objects, as sent. Iterating over it ends when the sender has closed.
    Belongs to the process that uses it first, and to one thread at a time.
    """

    cdef void resume(self) noexcept:
        """Take over from another process that had the lock of this end."""
        if self.c.head != load_relaxed_u64(&self.c.own.head):     # others have received since
            self.target = None
        ring_resume_consumer(&self.c)      # always: the producer may have retracted an incomplete message

    cdef bint is_at_beginning(self) noexcept:
        """Whether the next frame begins a message. Pieces of one whose beginning is not here are dropped."""
        cdef frame_t f
        cdef int found = next_frame(&self.c, &f)
        while found == 1 and kind_of(f.word) == PIECE:
            release_frame(self, &f)
            found = next_frame(&self.c, &f)
        return found != 0                  # of a corrupted ring, too: the call that receives raises

    cdef bint has_next(self, int64_t deadline_ns) except -1:
        cdef frame_t f
        if self.kept is not None or self.failure is not None:
            return True
        try:
            return self.look(&f, deadline_ns) != NOTHING
        except TypeError as error:         # of a message that was received
            self.failure = error
            return True

    cdef bint has_pieces(self) except -1:
        return self.target is not None and ring_ready(&self.c, 1) != 0

    cdef int look(self, frame_t *f, int64_t deadline_ns) except -1:
        """The next message, without waiting; of a stream under way, take the pieces that come until the deadline.

        Without a deadline (0) take all present pieces, to the end of the message if its sender is as fast.
        """
        cdef int found
        while True:
            if self.target is not None:
                found = self.pull_present(deadline_ns)
                if found == UNREADY or found == LATE:
                    return NOTHING
                if self.is_cut_off():
                    self.target = None
                    return NOTHING
                if self.finish_stream(found):
                    return ASSEMBLED
            found = next_frame(&self.c, f)
            if found == 0 or (self.checks_copies and not self.copy_apart(f, found)):
                return NOTHING
            if found < 0 or not BYTES <= kind_of(f.word) <= PIECE:
                raise self.corrupt()
            if kind_of(f.word) == PIECE:     # of a message whose beginning is not here
                release_frame(self, f)
            elif is_long(f.word):
                self.begin_stream(f)
            else:
                return FRAME

    cdef bint copy_apart(self, frame_t *f, int found) except -1:
        """Copy a frame out of a ring whose sender may disconnect this end. False: it has done so."""
        if found == 1:
            self.private = np.empty(f.nbytes, np.uint8)
            self.copy(cnp.PyArray_DATA(self.private), f, 0)
            f.bytes, f.kind, f.timed = <char *>cnp.PyArray_DATA(self.private), 0, 0
        return not self.is_cut_off()

    cdef int find(self, frame_t *f, int64_t timeout_ns) except -1:
        """As `look`, with a timeout; raises if no further message can come."""
        cdef int64_t deadline_ns = deadline_of(timeout_ns), left_ns, stream_deadline_ns
        cdef int outcome
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        while self.kept is None:
            outcome = self.look(f, deadline_ns)
            if outcome:
                return outcome
            left_ns = left_until(deadline_ns, timeout_ns)
            if self.target is not None and timeout_ns != 0:
                stream_deadline_ns = deadline_of(left_ns)
                outcome = drive(pull_pieces, self, &stream_deadline_ns, left_ns, &self.is_busy,
                                self.watch.writes_notes) if left_ns else LATE
            else:
                outcome = self.wait_for_tail(left_ns)
            if outcome == LATE:
                return NOTHING
            if outcome == GONE:
                self.target = None
                raise self.stream_over()
        return ASSEMBLED

    cdef object next_message(self, int64_t timeout_ns, bint *found):
        """The next message, received."""
        cdef frame_t f
        cdef int outcome
        self.require_idle()
        outcome = self.find(&f, timeout_ns)
        found[0] = outcome != NOTHING
        if outcome == NOTHING:
            return None
        return self.unpickled(self.make(&f) if outcome == FRAME else self.take_kept())

    cdef object take_kept(self):
        content = self.kept.pop(0)
        self.kept = self.kept or None
        return content

    cdef object unpickled(self, object content):
        cdef PickledContent pickled
        if self.leaves_pickled or type(content) is not PickledContent:
            return content
        pickled = content
        try:
            return unpickle_block(pickled.block, self._channel, pickled.flight)
        except ObjectError:
            raise
        except BaseException:              # of a signal handler: it was not received, and the next call begins again
            self.kept = [content, *(self.kept or ())]
            raise

    # ---- whole frames ----

    cdef tuple meta_of(self, frame_t *f, uint64_t nbytes):
        self.is_busy = True      # decoding may run Python code, and so other threads
        try:
            meta = decode_meta(f, nbytes)
        finally:
            self.is_busy = False
        if meta is None:
            raise self.corrupt()
        return meta

    cdef object make(self, frame_t *f):
        """The message of a frame, which is released: after its blocks were taken, which its sender holds until then."""
        cdef uint64_t skipped
        cdef void *to
        if kind_of(f.word) == BYTES:
            message = PyBytes_FromStringAndSize(NULL, f.nbytes)
            skipped, to = 0, PyBytes_AS_STRING(message)
        else:
            try:
                dtype, shape, skipped = self.meta_of(f, f.nbytes)
            except TypeError:
                leave_message(self, f)
                raise
            message = np.empty(shape, dtype)
            to = cnp.PyArray_DATA(message)
        self.copy(to, f, skipped)
        try:
            return self.made(message, f.word)
        finally:
            leave_message(self, f)

    cdef object made(self, object content, uint64_t word):
        cdef PickledContent pickled
        if kind_of(word) != OBJECT:
            return content
        pickled = PickledContent.__new__(PickledContent)
        pickled.block = content
        self.is_busy = True      # as in `meta_of`
        try:
            pickled.flight = taken_blocks(content, self._channel, word)
        finally:
            self.is_busy = False
        return pickled

    cdef int copy(self, void *to, const frame_t *f, uint64_t skipped) except -1:
        """Copy a frame, but for its first bytes."""
        cdef uint64_t nbytes = f.nbytes - skipped
        if nbytes < LONG_COPY_NBYTES:
            copy_out(&self.c, f, to, f.bytes + skipped, nbytes)
            return 0
        self.is_busy = True
        with nogil:
            copy_out(&self.c, f, to, f.bytes + skipped, nbytes)
        self.is_busy = False
        return 0

    cdef int require_room(self, uint64_t nbytes, borrowed_t *b) except -1:
        if nbytes > b.nbytes:
            raise MessageTooLongError(f"the next message has {nbytes} bytes, there is room for {b.nbytes}",
                                      nbytes=nbytes)
        return 0

    # ---- streams ----

    cdef int begin_stream(self, frame_t *f) except -1:
        """Allocate memory for the whole message, and take its first part."""
        cdef uint64_t nbytes, skipped, here
        if f.nbytes < WORD_NBYTES:
            raise self.corrupt()
        nbytes = (<const uint64_t *>f.bytes)[0]
        try:
            dtype, shape, skipped = self.meta_of(f, nbytes)
        except TypeError:                  # its pieces are skipped later
            leave_message(self, f)
            raise
        here = f.nbytes - WORD_NBYTES - skipped
        if here > nbytes - skipped:
            raise self.corrupt()
        self.word, self.content, self.content_nbytes = f.word, (shape, dtype), nbytes - skipped
        if self.into == NULL or kind_of(f.word) == OBJECT:
            self.allocate()
        else:
            self.require_room(self.content_nbytes, self.into)
            self.target, self.to = CALLERS_MEMORY, self.into.address
        self.missing = self.content_nbytes - here
        copy_out(&self.c, f, self.to, f.bytes + WORD_NBYTES + skipped, here)
        self.to += here
        release_frame(self, f)
        return 0

    cdef int allocate(self) except -1:
        if kind_of(self.word) == BYTES:
            self.target = PyBytes_FromStringAndSize(NULL, self.content_nbytes)
            self.to = PyBytes_AS_STRING(self.target)
        else:
            self.target = np.empty(*self.content)
            self.to = <char *>cnp.PyArray_DATA(self.target)
        return 0

    cdef int move_out(self) except -1:
        """If the caller leaves before its message is complete: move the part that has come into memory of this end."""
        if self.target is not CALLERS_MEMORY:
            return 0
        cdef uint64_t here = self.content_nbytes - self.missing
        cdef const char *source = self.to - here
        self.target = None     # if there is no memory, the message is given up
        self.allocate()
        memcpy(self.to, source, here)
        self.to += here
        return 0

    cdef int pull(self, patience_t *patience, int64_t deadline_ns) noexcept nogil:
        """Take the pieces that are there, and wait for more unless ``patience`` is NULL. READY: no more pieces come.

        LATE after the deadline (0: none), also without a wait.
        """
        cdef frame_t f
        cdef awaited_t a
        cdef int found, outcome
        while self.missing:
            found = next_frame(&self.c, &f)
            if found == 0:
                if patience == NULL:
                    return UNREADY
                a.watch, a.counter, a.until, a.wake_at = &self.watch, &self.ring.tail, self.c.head + 1, self.c.head + 1
                outcome = await_any(&a, 1, patience)
                if outcome != READY:
                    return outcome
                be_patient(patience, left_until(deadline_ns, patience.timeout_ns))
                continue
            if found < 0 or (kind_of(f.word) == PIECE and f.nbytes > self.missing):
                return RING_CORRUPT
            if kind_of(f.word) != PIECE:
                return READY
            copy_out(&self.c, &f, self.to, f.bytes, f.nbytes)
            self.to += f.nbytes
            self.missing -= f.nbytes
            release_frame(self, &f)
            if deadline_ns and self.missing and now_ns() >= deadline_ns:
                return LATE
        return READY

    cdef int pull_present(self, int64_t deadline_ns) except? -9:
        """Assemble the pieces that are there, without waiting: UNREADY when there are no more now. Without the GIL for
        long messages, and for 10 ms at most."""
        cdef int64_t until_ns = now_ns() + LONGEST_COPY_NS
        cdef int outcome
        if self.missing < LONG_COPY_NBYTES:
            return self.pull(NULL, deadline_ns)
        self.is_busy = True
        with nogil:
            outcome = self.pull(NULL, until_ns if deadline_ns == 0 else min(until_ns, deadline_ns))
        self.is_busy = False
        if outcome == LATE:
            PyErr_CheckSignals()
        return outcome

    cdef bint finish_stream(self, int outcome) except -1:
        """After the last piece: whether the message is complete; else its sender has given it up, and it is dropped."""
        target, self.target = self.target, None
        if outcome == RING_CORRUPT:
            raise self.corrupt()
        if self.missing:
            return False
        try:
            self.kept = [self.made(target, self.word)]
        finally:
            count_message(self)
        return True

    # ---- receiving ----

    @cython.critical_section
    def recv(self, timeout=None):
        """Receive the next message.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        bytes, numpy.ndarray or object
            The message; arrays own their memory.

        Raises
        ------
        queue.Empty
            No message came in time, or only a part of a long one: it stays receivable.
        EndOfStreamError
            The sender has closed in good order and all its messages were received.
        PeerLostError
            The sender has died, and all its messages were received. On a named channel a new sender may come.
        ObjectError
            The message is an object that cannot be unpickled here. It has been received.
        SegmentError
            The ring holds no valid message.
        """
        cdef bint found = False
        cdef int64_t timeout_ns = -1 if timeout is None else timeout_to_ns(timeout)
        message = take_bytes(self)
        if message is not None:
            return message
        message = self.next_message(timeout_ns, &found)
        if not found:
            raise queue.Empty
        return message

    def recv_async(self):
        """Await the next message, in an event loop of asyncio.

        Returns
        -------
        coroutine
            Returns and raises as `recv`. If it is cancelled, no message was received.
        """
        return aio.when_ready(self, self.recv)

    @cython.critical_section
    def recv_into(self, out, timeout=None):
        """Receive the content of the next message, bytes or an array, into memory of the caller.

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
            The message is longer than ``out``. It stays receivable.
        TypeError
            The message is an object, which stays receivable; or ``out`` is no writable memory.
        queue.Empty, EndOfStreamError, PeerLostError, SegmentError
            As in `recv`.
        """
        cdef borrowed_t b
        cdef int64_t timeout_ns = timeout_to_ns(timeout), nbytes
        self.require_idle()
        # A bytearray could be resized while the GIL is released; not one that is exported.
        borrow(memoryview(out) if isinstance(out, bytearray) else out, &b, True)
        try:
            self.require_idle()            # again: exporting memory may have run Python code that used this end
            self.into = &b
            try:
                nbytes = self.receive_into(&b, timeout_ns)
            finally:
                self.into = NULL
                self.move_out()
        finally:
            end_borrow(&b)
        if nbytes < 0:
            raise queue.Empty
        return nbytes

    cdef int64_t receive_into(self, borrowed_t *b, int64_t timeout_ns) except? -2:
        """Bytes received, or -1: none came in time."""
        cdef frame_t f
        cdef uint64_t nbytes, skipped
        cdef int found = self.find(&f, timeout_ns)
        if found == NOTHING:
            return -1
        if found == ASSEMBLED:
            if self.kept[0] is CALLERS_MEMORY:
                self.take_kept()
                return self.content_nbytes
            source = self.kept_array()
            nbytes = cnp.PyArray_NBYTES(source)
            self.require_room(nbytes, b)
            f.bytes, f.nbytes, f.kind, f.timed = <char *>cnp.PyArray_DATA(source), nbytes, 0, 0
            self.copy(b.address, &f, 0)
            self.take_kept()
            return nbytes
        self.require_no_object(&f)
        skipped = self.meta_of(&f, f.nbytes)[2]
        nbytes = f.nbytes - skipped
        self.require_room(nbytes, b)
        self.copy(b.address, &f, skipped)
        leave_message(self, &f)
        return nbytes

    cdef object kept_array(self):
        """The content of a kept message of bytes or an array."""
        message = self.kept[0]
        if not isinstance(message, (bytes, np.ndarray)):
            raise TypeError("the next message is an object: receive it by recv()")
        return message if isinstance(message, np.ndarray) else np.frombuffer(message, np.uint8)

    cdef int require_no_object(self, frame_t *f) except -1:
        if kind_of(f.word) == OBJECT:
            raise TypeError("the next message is an object: receive it by recv()")
        return 0

    @cython.critical_section
    def recv_many(self, count=None, timeout=None):
        """Receive the messages that are there; wait only for the first. Raises as `recv`.

        Parameters
        ----------
        count : int, optional
            The most messages to receive; by default as many as the ring can hold.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        list
            One message or more. Messages before an error are returned, and the next call raises the error.
        """
        cdef Py_ssize_t most = checked_count(count, INT64_MAX)
        cdef list messages = [self.recv(timeout)]
        cdef uint64_t begin = self.c.head
        try:
            # No more than the ring can hold: a sender that goes on sending does not keep the call from returning.
            while len(messages) < most and self.c.head - begin < self.c.capacity:
                if is_clear(self):
                    self.append_bytes(messages, min(most - len(messages), QUIET_MAX))
                if len(messages) < most:
                    messages.append(self.recv(0))
        except (queue.Empty, EndOfStreamError, PeerLostError, SegmentError):
            pass                       # the next call raises it by itself
        except Exception as error:
            self.failure = error
        except BaseException:          # KeyboardInterrupt
            self.kept = messages + (self.kept or [])
            raise
        return messages

    cdef int append_bytes(self, list messages, Py_ssize_t most) except -1:
        """Receive the frames of bytes that are there; one store releases all of them."""
        cdef frame_t f
        cdef uint64_t count = 0
        try:
            while <Py_ssize_t>count < most and next_frame(&self.c, &f) == 1 and is_short_bytes(&f):
                messages.append(bytes_of(&self.c, &f))
                self.c.head += f.nwords
                count += 1
        finally:
            if count:
                store_relaxed_u64(&self.c.own.received.messages, self.c.own.received.messages + count)
                ring_release(&self.c, 0)
                wake_peer(&self.watch, self.c.head)
        return 0

    @cython.critical_section
    def peek(self, timeout=None):
        """Lease the next message where it lies, to read it in place.

        Parameters
        ----------
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        Lease
            Behaves as a read-only array; bytes as one of uint8. If the message is an object, its ``object`` has arrays
            and tensors that lie in the lease. It ends with `release`; arrays and views taken from it must be gone by
            then. A message that came in pieces is assembled in private memory first: the lease is the same otherwise.

        Raises
        ------
        TypeError
            The message is an object that an interrupted `recv_many` has unpickled; it stays receivable.
        queue.Empty, EndOfStreamError, PeerLostError, SegmentError
            As in `recv`.
        """
        cdef frame_t f
        cdef int found
        cdef bint is_object
        self.require_idle()
        found = self.find(&f, timeout_to_ns(timeout))
        if found == NOTHING:
            raise queue.Empty
        if found == FRAME:
            dtype, shape, skipped = self.meta_of(&f, f.nbytes)
            self.frame = f
            self.lease = make_lease(self, self.private if self.checks_copies else self.memory,
                                    <char *>f.bytes + <uint64_t>skipped, dtype, shape, True)
            is_object = kind_of(f.word) == OBJECT
            if is_object:
                flight = taken_blocks(self.lease.view(), self._channel, f.word)
        else:
            is_object = type(self.kept[0]) is PickledContent
            flight = (<PickledContent>self.kept[0]).flight if is_object else None
            array = (<PickledContent>self.kept[0]).block if is_object else self.kept_array()
            self.lease = make_lease(self, array, <char *>cnp.PyArray_DATA(array), array.dtype, array.shape, True)
        if is_object:
            self.lease.hold_object(partial(unpickle_leased, self._channel, flight))
        return self.lease

    @cython.critical_section
    def release(self):
        """End the lease of the peeked message, which is then received.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was released; delete them and call again.
        ValueError
            Nothing is peeked.
        """
        require_lease(self)
        self.end_lease()
        if self.kept is not None:
            self.take_kept()
        else:
            leave_message(self, &self.frame)

    # ---- state ----

    @property
    def capacity_nbytes(self):
        """Size of the ring in bytes, headers included."""
        return self.ring.nslots * WORD_NBYTES


cdef int pull_pieces(object end, void *what, patience_t *patience) noexcept nogil:
    """A step of a stream (core/ring/blocking.pxd): READY when there are no more pieces, or GONE, LATE, or UNREADY."""
    return (<Receiver>end).pull(patience, (<int64_t *>what)[0])
