# The parts of sends and receives that need no GIL.
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t
from shmring.engine.engine cimport count_visitor
from shmring.p2p.point_to_point cimport PointToPoint, arrival_t


cdef bint enter_free(PointToPoint p) noexcept nogil
cdef void leave_free(PointToPoint p) noexcept nogil
cdef bint send_free(PointToPoint p, array_t *a, int peer, int tag) noexcept nogil
cdef int recv_free(PointToPoint p, array_t *a, int peer, int tag, arrival_t *found, bint *has_spun) noexcept nogil
cdef int await_free(PointToPoint p, array_t *a, int peer, int tag, int64_t *timeout_ns, arrival_t *found) noexcept nogil


cdef inline void visit(PointToPoint p) noexcept:
    """For a thread that has entered by `enter_free` and has taken the GIL: from here on it is in a call as by
    `PointToPoint.enter`, and leaves by `PointToPoint.leave`."""
    count_visitor(p.engine, 1)
