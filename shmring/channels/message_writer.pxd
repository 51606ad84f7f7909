# Messages into a ring (channels/message_writer.pyx): what `Sender`, `BroadcastSender` and `Queue` have in common.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t

from shmring._c.atomics cimport store_relaxed_u64
from shmring._c.faults cimport fault_point
from shmring.channels.endpoint cimport is_gone
from shmring.channels.ring_ends cimport RingSender
from shmring.channels.message_codec cimport message_t
from shmring.ring.blocking cimport wake_peer
from shmring.ring.framing cimport BYTES, copy_in, open_frame, stores_of_frame, word_of
from shmring.ring.spsc cimport ring_commit
from shmring.sync.liveness cimport fork_generation
from shmring.sync.backoff cimport patience_t

cdef class MessageWriter(RingSender):
    cdef uint64_t longest          # bytes of the longest frame
    cdef uint64_t piece            # bytes of a piece of a streamed message
    cdef bint must_cut             # a message was given up, or its sender died over it: the next frame must be a CUT

    cdef void resume(self, bint must_cut) noexcept
    cdef bint put_cut(self) noexcept
    cdef int try_open(self, uint64_t word, uint64_t nbytes, char **to, uint64_t *wanted) except -1
    cdef int open_or_drop(self, uint64_t word, uint64_t nbytes, char **to) except -1
    cdef int try_whole(self, message_t *m, uint64_t *wanted) except -1
    cdef int try_begin_stream(self, message_t *m, uint64_t *wanted) except -1
    cdef int advance(self, message_t *m, bint whole, uint64_t *wanted) except -1
    cdef void end_send(self, message_t *m) noexcept
    cdef int send_message(self, message_t *m, int64_t timeout_ns) except -1
    cdef int send_stream(self, message_t *m, int64_t timeout_ns) except -1
    cdef int push_pieces(self, message_t *m, int64_t timeout_ns, int64_t deadline_ns,
                         patience_t *patience) noexcept nogil
    cdef int put_pieces(self, message_t *m, int64_t *needed) noexcept nogil
    cdef int wait_for_room(self, uint64_t nwords, int64_t timeout_ns) except -1


# The head at which `nwords` are free.
cdef inline uint64_t room_at(MessageWriter w, uint64_t nwords) noexcept nogil:
    return w.p.tail + nwords - w.p.capacity


# Hand over what was reserved, `nmessages` with it.
cdef inline void announce(MessageWriter w, uint64_t nmessages) noexcept nogil:
    fault_point("announce")
    store_relaxed_u64(&w.ring.sent.messages, w.ring.sent.messages + nmessages)
    ring_commit(&w.p, w.p.reserved)
    fault_point("announced")
    wake_peer(&w.watch, w.p.tail)


# Whether no check is needed before a call.
cdef inline bint is_clear(MessageWriter w) noexcept:
    return (w.is_taken and not w.is_busy and not w.must_cut and w.lease is None
            and w.generation == fork_generation())


# Send exact `bytes` if nothing has to be checked and there is room: most messages. False: nothing was done.
cdef inline bint put_bytes(MessageWriter w, object x) noexcept:
    cdef int64_t needed
    cdef char *to
    if is_clear(w) and <uint64_t>PyBytes_GET_SIZE(x) <= w.piece and not is_gone(w.watch.other):
        to = open_frame(&w.p, word_of(BYTES) | stores_of_frame(&w.p, PyBytes_GET_SIZE(x)), PyBytes_GET_SIZE(x), &needed)
        if to != NULL:
            copy_in(&w.p, to, PyBytes_AS_STRING(x), PyBytes_GET_SIZE(x))
            announce(w, 1)
            return True
    return False
