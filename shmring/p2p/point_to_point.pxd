# The point-to-point calls of one rank.
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport shmring_cell
from shmring.arrays.array_view cimport array_t
from shmring.p2p.progress cimport Progress
from shmring.p2p.requests cimport Message, Request


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
    cdef bint send_at_once(self, array_t *a, int peer, int tag) except -1
    cdef Message recv_spinning(self, array_t *a, int peer, int tag, bint *has_spun)
    cdef Message recv_at_once(self, array_t *a, int peer, int tag, int looks)
    cdef Message take_next(self, array_t *a, int peer, int tag, shmring_cell *cell)
