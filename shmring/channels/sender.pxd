# The sending end of a channel of messages (channels/sender.pyx).
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.core.c.atomics cimport store_relaxed_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.arrays.lease cimport Lease
from shmring.channels.message_codec cimport message_t
from shmring.channels.ring_ends cimport RingSender, has_receiver
from shmring.core.ring.blocking cimport wake_peer
from shmring.core.ring.end cimport is_held
from shmring.core.ring.framing cimport BYTES, copy_in, open_frame, stores_of_frame, word_of
from shmring.core.ring.spsc cimport ring_commit
from shmring.core.sync.backoff cimport patience_t


cdef class Sender(RingSender):
    cdef uint64_t longest          # bytes of the longest frame
    cdef uint64_t piece            # bytes of a piece of a streamed message
    cdef uint64_t *reserved_word   # of the frame that is leased: its word,
    cdef uint64_t reserved_meta    # bytes before its content,
    cdef uint64_t reserved_nwords  # and what to commit for all of it
    cdef const uint32_t *cancelled   # not 0: the message that is being streamed is to be given up; NULL: never
    cdef uint64_t quiet            # messages that `send_many` has put into the ring and not announced yet

    cdef void resume(self) noexcept
    cdef int try_open(self, uint64_t word, uint64_t nbytes, char **to, uint64_t *wanted) except -1
    cdef bint is_whole(self, message_t *m, bint may_wait) noexcept
    cdef int try_room(self, uint64_t nbytes, uint64_t *wanted) except -1
    cdef int hold_blocks(self, object departure) except -1
    cdef int leave_blocks(self, object departure, message_t *m, bint may_wait, int64_t timeout_ns) except -1
    cdef int try_whole(self, message_t *m, uint64_t *wanted) except -1
    cdef int try_begin_stream(self, message_t *m, uint64_t *wanted) except -1
    cdef int send_message(self, message_t *m, int64_t timeout_ns) except -1
    cdef int await_room(self, uint64_t wanted, int64_t timeout_ns) except -1
    cdef int send_stream(self, message_t *m, int64_t timeout_ns) except -1
    cdef int put_pieces(self, message_t *m, uint64_t *needed, int64_t until_ns) noexcept nogil
    cdef int take_step(self, message_t *m) except -1
    cdef void end_send(self, message_t *m) noexcept
    cdef object send_encoded(self, message_t *m, int64_t timeout_ns)
    cdef void announce_quiet(self) noexcept
    cdef int try_reserve(self, object shape, object dtype, uint64_t *wanted) except -1


cdef object too_many_blocks()


# Hand over what was reserved, `nmessages` with it.
cdef inline void announce(Sender s, uint64_t nmessages) noexcept nogil:
    fault_point("announce")
    store_relaxed_u64(&s.ring.sent.messages, s.ring.sent.messages + nmessages)
    ring_commit(&s.p, s.p.reserved)
    fault_point("announced")
    if s.p.nheads == 1:
        wake_peer(&s.watch, s.p.tail)
    else:
        s.wake_receivers()


# Whether no check is needed before a call.
cdef inline bint is_clear(Sender s) noexcept:
    return is_held(s) and s.lease is None


# Send exact `bytes` if nothing has to be checked and there is room: most messages. False: nothing was done.
cdef inline bint put_bytes(Sender s, object x) noexcept:
    cdef int64_t needed
    cdef char *to
    if is_clear(s) and <uint64_t>PyBytes_GET_SIZE(x) <= s.piece and has_receiver(s):
        to = open_frame(&s.p, word_of(BYTES) | stores_of_frame(&s.p, PyBytes_GET_SIZE(x)), PyBytes_GET_SIZE(x), &needed)
        if to != NULL:
            copy_in(&s.p, to, PyBytes_AS_STRING(x), PyBytes_GET_SIZE(x))
            announce(s, 1)
            return True
    return False
