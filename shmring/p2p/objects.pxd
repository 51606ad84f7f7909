# Python objects as messages.
from libc.stdint cimport int64_t

from shmring.p2p.point_to_point cimport PointToPoint


cdef int send_object(PointToPoint messages, obj, int dst, int tag, int64_t timeout_ns) except -1
cdef object recv_object(PointToPoint messages, int src, int tag, int64_t timeout_ns)
