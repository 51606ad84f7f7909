"""Messages out of a ring: whole frames, and streams that are assembled from pieces."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.string cimport memcpy

import numpy as np

from shmring._c.atomics cimport load_relaxed_u64
from shmring.arrays cimport numpy_api as cnp
from shmring.channels.endpoint cimport deadline_of, left_until
from shmring.channels.message_codec cimport (LONG_COPY_NBYTES, decode_meta, pickle_stream_nbytes,
                                             unpickle_content)
from shmring.ring.blocking cimport GONE, LATE, await_counter
from shmring.ring.framing cimport (BYTES, CUT, OBJECT, PIECE, WORD_NBYTES, copy_out, is_long, kind_of, next_frame)
from shmring.ring.overwrite cimport claim_next
from shmring.ring.spsc cimport RING_CORRUPT, ring_resume_consumer
from shmring.sync.backoff cimport be_patient, now_ns
from shmring.sync.group cimport READY, UNREADY

from shmring.errors import MessageTooLongError

cnp.import_array()

CALLERS_MEMORY = object()      # the target of a stream that goes straight into memory of the caller


@cython.final
cdef class PickledContent:
    """A received object, not yet unpickled: see `unpickle_content` in channels/message_codec.pyx."""


@cython.no_gc
cdef class MessageReader(RingReceiver):
    """The receiving end of a ring of messages, without a Python interface."""

    cdef void resume(self) noexcept:
        """Take over from another process that had the lock of this end."""
        if self.c.head != load_relaxed_u64(&self.ring.head):     # others have received since
            self.target = None
        ring_resume_consumer(&self.c)      # always: the producer may have retracted an incomplete message

    cdef bint has_next(self) except -1:
        cdef frame_t f
        if self.kept is not None or self.failure is not None:
            return True
        try:
            is_there = self.look(&f, 0) != NOTHING
        except TypeError as error:         # of a message that was received
            self.failure, is_there = error, True
        self.give_up_claim()
        return is_there

    cdef int look(self, frame_t *f, int64_t deadline_ns) except -1:
        """The next message, without waiting; of a stream under way, the pieces that come until the deadline are taken.

        Without a deadline (0) all that are there: the message can end if its sender is as fast.
        """
        cdef int found
        while True:
            if self.target is not None:
                found = self.pull(NULL, deadline_ns)
                if found == UNREADY or found == LATE:
                    return NOTHING
                if self.finish_stream(found):
                    return ASSEMBLED
            found = 1 if self.drops != DROPS_OLDEST else min(claim_next(&self.c), 1)
            if found == 1:
                found = next_frame(&self.c, f)
            if found == 0:
                return NOTHING
            if found < 0 or not BYTES <= kind_of(f.word) <= CUT:
                raise self.corrupt()
            if kind_of(f.word) == CUT or kind_of(f.word) == PIECE:     # of a message whose beginning is not here
                release_frame(self, f)
            elif is_long(f.word):
                self.begin_stream(f)
            else:
                return FRAME

    cdef int find(self, frame_t *f, int64_t timeout_ns) except -1:
        """The same, with a timeout; raises if nothing more will come."""
        cdef int64_t deadline_ns = deadline_of(timeout_ns), left_ns
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
                outcome = self.await_pieces(left_ns) if left_ns else LATE
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
            return unpickle_content(pickled.content, pickled.stream_nbytes, self.channel)
        except Exception:
            raise
        except BaseException:              # KeyboardInterrupt: it was not received, and the next call begins again
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
        """The message of a frame, which is released."""
        cdef uint64_t skipped, stream_nbytes
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
        stream_nbytes = pickle_stream_nbytes(f)
        self.copy(to, f, skipped)
        leave_message(self, f)
        return self.made(message, stream_nbytes, f.word)

    cdef object made(self, object content, uint64_t stream_nbytes, uint64_t word):
        cdef PickledContent pickled
        if kind_of(word) != OBJECT:
            return content
        pickled = PickledContent.__new__(PickledContent)
        pickled.content, pickled.stream_nbytes = content, stream_nbytes
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
            self.give_up_claim()
            raise MessageTooLongError(f"the next message has {nbytes} bytes, there is room for {b.nbytes}",
                                      nbytes=nbytes)
        return 0

    # ---- streams ----

    cdef int begin_stream(self, frame_t *f) except -1:
        """Allocate memory for all of it, take its first part."""
        cdef uint64_t nbytes, skipped, here
        if f.nbytes < WORD_NBYTES:
            raise self.corrupt()
        nbytes = (<const uint64_t *>f.bytes)[0]
        try:
            dtype, shape, skipped = self.meta_of(f, nbytes)
        except TypeError:                  # its pieces will be passed over
            leave_message(self, f)
            raise
        here = f.nbytes - WORD_NBYTES - skipped
        if here > nbytes - skipped:
            raise self.corrupt()
        self.stream_nbytes = pickle_stream_nbytes(f)
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
        """The caller leaves before its message is complete: what has come of it moves into memory of this end."""
        if self.target is not CALLERS_MEMORY:
            return 0
        cdef uint64_t here = self.content_nbytes - self.missing
        cdef const char *source = self.to - here
        self.target = None     # without memory for it, it is given up
        self.allocate()
        memcpy(self.to, source, here)
        self.to += here
        return 0

    cdef int pull(self, patience_t *patience, int64_t deadline_ns) noexcept nogil:
        """Take the pieces that are there, and wait for more if there is patience. READY: no more pieces will come.

        LATE after the deadline (0: none), also if there was nothing to wait for.
        """
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

    cdef bint finish_stream(self, int outcome) except -1:
        """After the last piece: whether it is complete; if not, its sender has given it up, and it is dropped."""
        target, self.target = self.target, None
        if outcome == RING_CORRUPT:
            raise self.corrupt()
        if self.missing:
            return False
        count_message(self)
        self.kept = [self.made(target, self.stream_nbytes, self.word)]
        return True

    cdef int await_pieces(self, int64_t timeout_ns) except -1:
        """READY when there are no more pieces, or GONE or LATE."""
        cdef patience_t patience
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef int outcome
        self.signal_notifier()
        be_patient(&patience, timeout_ns)
        self.is_busy = True
        try:
            while True:
                with nogil:
                    outcome = self.pull(&patience, deadline_ns)
                if outcome != UNREADY:
                    return outcome
                PyErr_CheckSignals()
        finally:
            self.is_busy = False
