"""Messages into a ring: whole frames, streams of pieces, waiting for room, dropping.

A message that fits is one frame. A longer one, if the caller may wait, is streamed: a first frame with its length, then
pieces, so that both ends copy at the same time. A stream that ends early is followed by a CUT frame.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals

from shmring._c.atomics cimport load_relaxed_u64
from shmring.channels.endpoint cimport DROPPED, deadline_of, left_until
from shmring.channels.format cimport DROPS_OLDEST
from shmring.channels.message_codec cimport is_partly_sent, start_stream
from shmring.ring.blocking cimport GONE, LATE, await_counter
from shmring.ring.framing cimport CUT, PIECE, WORD_NBYTES, frame_needs, longest_frame, put_load, stores_of_frame
from shmring.ring.overwrite cimport overwrite_frames
from shmring.ring.spsc cimport RING_CORRUPT, ring_abort, ring_resume_producer
from shmring.sync.backoff cimport be_patient
from shmring.sync.group cimport READY, UNREADY

cdef enum:
    PIECE_NBYTES = 128 << 10       # of a stream: both ends copy at the same time, within the second-level cache
    PIECE_NBYTES_LEAST = 1024


@cython.no_gc
cdef class MessageWriter(RingSender):
    """The sending end of a ring of messages, without a Python interface."""

    cdef int attach(self, bint again) noexcept:
        cdef int code = RingSender.attach(self, again)
        if code == 0:
            self.longest = longest_frame(self.p.capacity)
            # Several pieces fit into the ring, unless they would be so small that their words weigh as much.
            self.piece = min(min(self.longest, <uint64_t>PIECE_NBYTES),
                             max(self.longest // 4 // WORD_NBYTES * WORD_NBYTES, <uint64_t>PIECE_NBYTES_LEAST))
            self.must_cut = self.p.tail != 0
            self.p.learns_stores = self.drops != DROPS_OLDEST
        return code

    cdef void resume(self, bint must_cut) noexcept:
        """Take over from another process that had the lock of this end."""
        if self.p.tail != load_relaxed_u64(&self.ring.tail):     # else no other process has sent since
            ring_resume_producer(&self.p)
        self.must_cut = must_cut

    cdef void leave(self, bint in_good_order) noexcept:
        if self.must_cut and in_good_order and not self.owned_by_lock:
            self.put_cut()
        RingSender.leave(self, in_good_order)

    cdef bint put_cut(self) noexcept:
        cdef int64_t needed
        if open_frame(&self.p, word_of(CUT), 0, &needed) == NULL:
            return False
        announce(self, 0)
        self.must_cut = False
        return True

    # ---- without waiting: READY, LATE (`wanted` slots must be free first) or DROPPED ----

    cdef int try_open(self, uint64_t word, uint64_t nbytes, char **to, uint64_t *wanted) except -1:
        """Reserve a whole frame, at ``to``."""
        cdef int64_t needed
        if nbytes > self.longest:
            raise ValueError(f"a message of {nbytes} bytes is too long to go in one piece (at most {self.longest}): "
                             "make the capacity larger, or call send() with a timeout, which sends several pieces")
        if is_gone(self.watch.other):
            raise self.peer_lost()
        wanted[0] = 1
        if self.must_cut and not self.put_cut():
            return LATE
        if self.drops:
            return self.open_or_drop(word, nbytes, to)
        to[0] = open_frame(&self.p, word, nbytes, &needed)
        if to[0] != NULL:
            return READY
        if needed == RING_CORRUPT:
            raise self.corrupt()
        wanted[0] = needed
        return LATE

    cdef int open_or_drop(self, uint64_t word, uint64_t nbytes, char **to) except -1:
        cdef int64_t needed
        cdef int has_room = 1
        to[0] = NULL
        if self.drops == DROPS_OLDEST:
            has_room = overwrite_frames(&self.p, frame_needs(&self.p, nbytes), &self.ring.sent.overwritten)
            needed = RING_CORRUPT if has_room < 0 else 0
        if has_room == 1:
            to[0] = open_frame(&self.p, word, nbytes, &needed)
        if to[0] != NULL:
            return READY
        if needed == RING_CORRUPT:
            raise self.corrupt()
        self.ring.sent.dropped += 1
        return DROPPED

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
        """Begin a stream once there is room for a frame; raise what must be raised before anything is sent."""
        cdef char *to
        if m.meta_nbytes + WORD_NBYTES > self.piece:
            raise ValueError(f"the dtype and shape of this message take {m.meta_nbytes} bytes, which do not fit into a "
                             f"frame of {self.piece}: make the channel larger")
        cdef int outcome = self.try_open(0, 0, &to, wanted)
        if outcome == READY:
            ring_abort(&self.p)
            start_stream(m)
        return outcome

    cdef int advance(self, message_t *m, bint whole, uint64_t *wanted) except -1:
        """Send a message, or go on with it, as one frame if it must be ``whole``.

        To be called until it is not LATE; then, or to give the message up, call `end_send`. In between no other call of
        this end is possible if a part of the message is in the ring.
        """
        cdef int64_t needed = 0
        cdef int outcome
        while True:
            if not m.is_streamed and (m.load.nbytes <= self.piece or self.drops or whole):
                outcome = self.try_whole(m, wanted)
            elif not m.is_streamed and self.try_begin_stream(m, wanted) == LATE:
                outcome = LATE
            else:
                self.is_busy = True
                outcome = self.put_pieces(m, &needed)
                if outcome == RING_CORRUPT:
                    raise self.corrupt()
                wanted[0] = needed
            if outcome != LATE:
                return outcome
            # Looks again, and arms the notifier.
            outcome = self.wait_for(&self.ring.head, room_at(self, wanted[0]), 0, 0)
            if outcome == GONE:
                raise self.peer_lost()
            if outcome == LATE:
                return LATE

    cdef void end_send(self, message_t *m) noexcept:
        if m.is_streamed:
            self.is_busy = False
            self.must_cut = is_partly_sent(m)

    # ---- with a timeout ----

    cdef int send_message(self, message_t *m, int64_t timeout_ns) except -1:
        """READY, LATE or DROPPED. Only with time to wait a message may be streamed."""
        cdef uint64_t wanted
        cdef int outcome
        cdef bint is_whole = m.load.nbytes <= self.piece or self.drops or timeout_ns == 0
        cdef int64_t deadline_ns = 0
        while True:
            outcome = self.try_whole(m, &wanted) if is_whole else self.try_begin_stream(m, &wanted)
            if outcome != LATE:
                break
            if deadline_ns == 0:           # a message for which there is room needs no look at the clock
                deadline_ns = deadline_of(timeout_ns)
            if self.wait_for_room(wanted, left_until(deadline_ns, timeout_ns)) == LATE:
                return LATE
        if is_whole:
            return outcome
        return self.send_stream(m, timeout_ns if deadline_ns == 0 else left_until(deadline_ns, timeout_ns))

    cdef int wait_for_room(self, uint64_t nwords, int64_t timeout_ns) except -1:
        cdef int outcome = self.wait_for(&self.ring.head, room_at(self, nwords),
                                         room_at(self, max(nwords, self.p.capacity // 4)), timeout_ns)
        if outcome == GONE:
            raise self.peer_lost()
        return outcome

    cdef int send_stream(self, message_t *m, int64_t timeout_ns) except -1:
        """Send the pieces; an exception or a timeout in the middle has the message cut."""
        cdef patience_t patience
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef int outcome
        self.signal_notifier()
        be_patient(&patience, timeout_ns)
        self.is_busy = True
        try:
            while True:
                with nogil:
                    outcome = self.push_pieces(m, timeout_ns, deadline_ns, &patience)
                if outcome == GONE:
                    raise self.peer_lost()
                if outcome == RING_CORRUPT:
                    raise self.corrupt()
                if outcome != UNREADY:
                    return outcome
                PyErr_CheckSignals()
        finally:
            self.end_send(m)

    cdef int push_pieces(self, message_t *m, int64_t timeout_ns, int64_t deadline_ns,
                         patience_t *patience) noexcept nogil:
        """READY, LATE, GONE, RING_CORRUPT; or UNREADY: to be called again after a look at signals."""
        cdef int64_t needed = 0
        cdef int outcome
        while True:
            outcome = self.put_pieces(m, &needed)
            if outcome != LATE:
                return outcome
            outcome = await_counter(&self.watch, &self.ring.head, room_at(self, needed),
                                    room_at(self, max(<uint64_t>needed, self.p.capacity // 4)), patience)
            if outcome != READY:
                return outcome
            be_patient(patience, left_until(deadline_ns, timeout_ns))

    cdef int put_pieces(self, message_t *m, int64_t *needed) noexcept nogil:
        """READY: all are in the ring; LATE: ``needed`` slots must be free first; or RING_CORRUPT."""
        cdef uint64_t nbytes
        cdef char *to
        while m.load.nbytes:
            nbytes = min(m.load.nbytes, self.piece)
            to = open_frame(&self.p, m.load.word | stores_of_frame(&self.p, nbytes), nbytes, needed)
            if to == NULL:
                return RING_CORRUPT if needed[0] == RING_CORRUPT else LATE
            put_load(&self.p, to, &m.load, nbytes)
            m.load.nbytes -= nbytes
            m.load.word = word_of(PIECE)
            announce(self, m.load.nbytes == 0)
        return READY
