# Messages at the face of a communicator.
from shmring.collective.data_movement cimport DataMovement
from shmring.p2p.point_to_point cimport PointToPoint


cdef class MessageCalls(DataMovement):
    cdef PointToPoint messages
    cdef dict begun_objects        # by source and tag: the parts that have arrived of an incomplete object
