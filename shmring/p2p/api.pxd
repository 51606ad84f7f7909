# Messages at the face of a communicator.
from shmring.collective.data_movement cimport DataMovement
from shmring.p2p.point_to_point cimport PointToPoint


cdef class MessageCalls(DataMovement):
    cdef readonly PointToPoint messages
