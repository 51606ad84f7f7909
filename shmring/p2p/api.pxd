# Messages at the face of a communicator.
from shmring.collective.api cimport Calls
from shmring.p2p.progress cimport PointToPoint


cdef class MessageCalls(Calls):
    cdef PointToPoint messages
