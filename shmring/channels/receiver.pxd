# The receiving end of a channel of messages (channels/receiver.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring.core.c.atomics cimport store_relaxed_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.arrays.lease cimport borrowed_t
from shmring.core.ring.blocking cimport wake_peer
from shmring.channels.message_codec cimport LONG_COPY_NBYTES, bytes_of
from shmring.channels.ring_ends cimport RingReceiver
from shmring.core.ring.end cimport is_held
from shmring.core.ring.framing cimport BYTES, frame_t, leave_frame, next_frame
from shmring.core.sync.backoff cimport patience_t

cdef enum:                         # results of `look` and `find`
    NOTHING = 0
    FRAME = 1                      # a message that begins with this frame
    ASSEMBLED = 2                  # a streamed message, complete


cdef class PickledContent:             # a received object, not yet unpickled
    cdef readonly object block         # core/objects/codec.py
    cdef readonly object flight        # core/blocks/in_flight.py; None: no blocks came with it


cdef class Receiver(RingReceiver):
    cdef object target                 # the object that a streamed message under way becomes; the next are of that one:
    cdef char *to                      # address of the next bytes
    cdef uint64_t missing              # bytes that have not come yet
    cdef uint64_t content_nbytes       # all bytes
    cdef uint64_t word                 # the word of its first frame
    cdef object content                # its dtype and shape
    cdef borrowed_t *into              # memory of the caller for the next streamed message, if it gave any
    cdef list kept                     # messages that are complete and were not returned yet; None if there are none
    cdef object failure                # an error that the next call raises
    cdef bint leaves_pickled           # objects are returned as `PickledContent`
    cdef frame_t frame                 # that is peeked
    cdef object private                # a copy of it, where the sender may disconnect this end

    cdef void resume(self) noexcept
    cdef bint is_at_beginning(self) noexcept
    cdef int look(self, frame_t *f, int64_t deadline_ns) except -1
    cdef bint copy_apart(self, frame_t *f, int found) except -1
    cdef int find(self, frame_t *f, int64_t timeout_ns) except -1
    cdef object next_message(self, int64_t timeout_ns, bint *found)
    cdef tuple meta_of(self, frame_t *f, uint64_t nbytes)
    cdef object make(self, frame_t *f)
    cdef object made(self, object content, uint64_t word)
    cdef object take_kept(self)
    cdef object unpickled(self, object content)
    cdef int copy(self, void *to, const frame_t *f, uint64_t skipped) except -1
    cdef int require_room(self, uint64_t nbytes, borrowed_t *b) except -1
    cdef int begin_stream(self, frame_t *f) except -1
    cdef int allocate(self) except -1
    cdef int move_out(self) except -1
    cdef int pull(self, patience_t *patience, int64_t deadline_ns) noexcept nogil
    cdef int pull_present(self, int64_t deadline_ns) except? -9
    cdef bint finish_stream(self, int outcome) except -1
    cdef int64_t receive_into(self, borrowed_t *b, int64_t timeout_ns) except? -2
    cdef object kept_array(self)
    cdef int require_no_object(self, frame_t *f) except -1
    cdef int append_bytes(self, list messages, Py_ssize_t most) except -1


# Whether no check is needed before a call, and the next frame in the ring is the next message.
cdef inline bint is_clear(Receiver r) noexcept:
    return (is_held(r) and r.lease is None and r.target is None and r.kept is None and r.failure is None
            and not r.checks_copies)


cdef inline void leave_message(Receiver r, frame_t *f) noexcept nogil:
    if r.owned_by_lock:            # a process killed in between must not have counted a message that others find
        release_frame(r, f)
        count_message(r)
    else:                          # the awaited counter is stored last: one transfer of their line
        count_message(r)
        release_frame(r, f)


cdef inline void count_message(Receiver r) noexcept nogil:
    store_relaxed_u64(&r.c.own.received.messages, r.c.own.received.messages + 1)


cdef inline void release_frame(Receiver r, frame_t *f) noexcept nogil:
    fault_point("give")
    leave_frame(&r.c, f)
    fault_point("given")
    wake_peer(&r.watch, r.c.head)


# Whether a frame is a whole message of bytes, so short that it is copied with the GIL held.
cdef inline bint is_short_bytes(const frame_t *f) noexcept nogil:
    return f.word >> 32 == BYTES and f.nbytes < LONG_COPY_NBYTES


# Receive a message if no check is needed, and it is such a frame: most messages. Else None.
cdef inline object take_bytes(Receiver r):
    cdef frame_t f
    if is_clear(r) and next_frame(&r.c, &f) == 1 and is_short_bytes(&f):
        message = bytes_of(&r.c, &f)
        leave_message(r, &f)
        return message
    return None
