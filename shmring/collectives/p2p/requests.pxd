# Messages, requests, and whether a message fits a request.
from libc.stdint cimport int32_t, int64_t, uint64_t

from shmring.core.arrays.array_view cimport array_t
from shmring.core.base.future cimport Future
from shmring.core.sync.backoff cimport be_patient, deadline_of, is_past_deadline, patience_t

cdef enum:
    ANY = -1                     # source or tag
    MOST_TAG = 0x7FFFFFFF
    OPAQUE_BYTES = -1            # the code of dtypes that are not in dtypes.DTYPES
    OBJECT_STREAM = -2           # the codes of the messages that an object consists of: the pickle stream,
    OBJECT_BUFFER = -3           # and one out-of-band buffer

cdef enum:                       # kinds of requests
    SEND = 0
    RECV = 1
    PROBE = 2


cdef class Message:
    cdef readonly int source
    cdef readonly int tag
    cdef readonly uint64_t nbytes
    cdef int32_t code              # of the dtype
    cdef uint64_t number           # for timelines, equal at both ends (collectives/p2p/pair_queue.pxd)


# One wait, of one call: kept over all that it waits for.
ctypedef struct wait_t:
    patience_t patience
    int64_t began_ns               # 0: it has not been looked up yet


cdef inline void begin_wait(wait_t *wait, int64_t timeout_ns) noexcept nogil:
    be_patient(&wait.patience, timeout_ns)
    wait.began_ns = 0


cdef inline bint is_late(wait_t *wait) noexcept nogil:
    """The deadline counts from the first look: nothing has been awaited while messages came one after the other."""
    if wait.patience.deadline_ns == 0:
        wait.patience.deadline_ns = deadline_of(wait.patience.timeout_ns)
    return is_past_deadline(&wait.patience)


# The sends, receives and probes of one rank: what `Communicator.messages` is. Timeouts: < 0: no limit.
cdef class Messages:
    cpdef send(self, x, int dst, int tag, int64_t timeout_ns)
    cpdef recv(self, x, int src, int tag, int64_t timeout_ns)
    cpdef sendrecv(self, x, int dst, int tag, out, int src, int out_tag, int64_t timeout_ns)
    cpdef isend(self, x, int dst, int tag)
    cpdef irecv(self, x, int src, int tag)
    cpdef probe(self, int src, int tag, int64_t timeout_ns)
    cpdef send_object(self, obj, int dst, int tag, int64_t timeout_ns)
    cpdef recv_object(self, int src, int tag, int64_t timeout_ns)
    cpdef list stats(self)

    # For its requests. A call enters, and leaves afterwards.
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef bint await_all(self, list requests, wait_t *wait) except -1


cdef class Request(Future):
    cdef Messages owner
    cdef int64_t started_ns        # 0: not recorded (collectives/engine/recording.pyx)
    cdef int kind
    cdef int peer
    cdef int tag
    cdef array_t a
    cdef object array              # the argument of the call
    cdef object keeper             # the owner of its memory
    cdef bint is_over
    cdef Message message
    cdef object error
    cdef list callbacks
    cdef object __weakref__

    cpdef _settle(self, timeout)
    cpdef _value(self)
    cdef int settle(self, int64_t timeout_ns) except -1


cdef class Unexpected:
    cdef Message message
    cdef char *content
    cdef bint is_whole
    cdef Request claimant


cdef Message message_of(int source, int tag, uint64_t nbytes, int code)
cdef Unexpected unexpected_of(Message message)
cdef Request request_of(Messages owner, int kind, int peer, int tag, array_t *a, object x, object keeper)
cdef Request done_request(Messages owner, int kind)      # one that has nothing to send or receive
cdef void run_callbacks(list finished) noexcept
cdef object misfit(str name, array_t *a, Message message)
cdef int check_tag(int tag, bint any_is_allowed) except -1
cdef int check_apart(array_t *x, array_t *out) except -1
cdef int known_code(int code) noexcept nogil
cdef bint can_hold(array_t *a, uint64_t nbytes, int dtype) noexcept nogil


cdef inline bint is_for(int peer, int tag, int source, int its_tag) noexcept nogil:
    return (peer == ANY or peer == source) and (tag == its_tag or (tag == ANY and its_tag >= 0))
