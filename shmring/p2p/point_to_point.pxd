# The point-to-point calls of one rank.
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport shmring_cell
from shmring.arrays.array_view cimport array_t
from shmring.p2p.progress cimport Progress
from shmring.p2p.requests cimport Message, Request

# A message that is being received, as its sender described it; the code of its dtype is checked.
ctypedef struct arrival_t:
    int source
    int tag
    uint64_t nbytes
    int code


cdef class PointToPoint(Progress):
    # Each of these enters and leaves.
    cdef int send(self, object x, int peer, int tag, int64_t timeout_ns) except -1
    cdef Message recv(self, object x, int peer, int tag, int64_t timeout_ns)
    cdef Message sendrecv(self, object x, int peer, int tag, object out, int source, int out_tag, int64_t timeout_ns)
    cdef Request isend(self, object x, int peer, int tag)
    cdef Request irecv(self, object x, int peer, int tag)
    cdef Message probe(self, int peer, int tag, int64_t timeout_ns)
    cdef int send_object(self, list parts, int peer, int tag, int64_t timeout_ns) except -1
    cdef int recv_part(self, list parts, Message message, int64_t timeout_ns) except -1

    cdef int check_peer(self, int peer, bint any_is_allowed) except -1
    cdef int open_pair_queue(self, int peer, uint64_t nbytes) except -1
    cdef Message receive(self, array_t *a, object x, object keeper, int peer, int tag, int64_t timeout_ns)
    cdef int transmit(self, array_t *a, object x, object keeper, int peer, int tag, int64_t timeout_ns) except -1
    cdef Message await_message(self, Request s, Request r, Message begun, int64_t timeout_ns, bint has_spun)
    cdef int begin_send(self, Request r) except -1
    cdef int begin_receive(self, Request r, Message begun) except -1
    cdef bint send_at_once(self, array_t *a, int peer, int tag) except -1
    cdef bint start_whole(self, array_t *a, int peer, int tag) noexcept nogil
    cdef Message recv_spinning(self, array_t *a, int peer, int tag, bint *has_spun)
    cdef void note_received(self, arrival_t *found, int64_t started_ns) noexcept nogil
    cdef bint take_at_once(self, array_t *a, int peer, int tag, int looks, arrival_t *found) noexcept nogil
    cdef bint take_next(self, array_t *a, int peer, int tag, shmring_cell *cell, arrival_t *found) noexcept nogil
