# The point-to-point calls of one rank.
from libc.stdint cimport int64_t, uint64_t

from shmring.core.arrays.array_view cimport array_t
from shmring.collectives.engine.engine cimport Engine, count_visitor
from shmring.collectives.p2p.matching cimport Matching
from shmring.collectives.p2p.progress cimport Progress
from shmring.collectives.p2p.requests cimport Message, Messages, Request, wait_t
from shmring.core.sync.backoff cimport patience_t

# A message that is being received, as its sender described it; the code of its dtype is checked.
ctypedef struct arrival_t:
    int source                     # ANY: none has begun
    int tag
    uint64_t nbytes
    int code
    int64_t started_ns             # when its receive began, for the timeline; 0: not recorded


cdef class PointToPoint(Messages):
    cdef Engine engine
    cdef Matching matching
    cdef Progress progress
    cdef int rank
    cdef int size
    cdef dict begun_objects        # by source and tag: the parts that have arrived of an incomplete object

    cdef int check_peer(self, int peer, bint any_is_allowed) except -1

    # ---- the parts of a call that has entered; requests are the last resort ----
    cdef int transmit(self, array_t *a, object x, object keeper, int peer, int tag, wait_t *wait) except -1
    cdef Message await_message(self, Request s, Request r, arrival_t *begun, wait_t *wait)
    cdef int begin_send(self, Request r) except -1
    cdef int begin_receive(self, Request r, arrival_t *begun) except -1

    # ---- the same without the GIL, once turns are shared (`Engine.share_turns`) ----
    cdef bint enter_free(self) noexcept nogil
    cdef void leave_free(self) noexcept nogil
    cdef bint send_whole(self, array_t *a, int peer, int tag) noexcept nogil
    cdef int receive_at_once(self, array_t *a, int peer, int tag, patience_t *patience,
                             arrival_t *found) noexcept nogil
    cdef int receive_free(self, array_t *a, int peer, int tag, wait_t *wait, arrival_t *found) noexcept nogil

    cdef Message receive(self, array_t *a, object x, object keeper, int peer, int tag, int64_t timeout_ns)
    cdef bint send_at_once(self, array_t *a, int peer, int tag) except -1
    cdef int open_pair_queue(self, int peer, uint64_t nbytes) except -1
    cdef bint take(self, array_t *a, int peer, int tag, int looks, arrival_t *found) noexcept nogil
    cdef bint take_next(self, array_t *a, int peer, int tag, arrival_t *found) noexcept nogil
    cdef int pull_taken(self, patience_t *patience, arrival_t *found) noexcept nogil
    cdef int send_parts(self, list parts, int peer, int tag, int64_t timeout_ns) except -1
    cdef int recv_part(self, list parts, Message message, int64_t timeout_ns) except -1


cdef inline void visit(PointToPoint p) noexcept:
    """For a thread that has entered by `enter_free` and has taken the GIL: from here on it is in a call as by
    `PointToPoint.enter`, and leaves by `PointToPoint.leave`."""
    count_visitor(p.engine, 1)
