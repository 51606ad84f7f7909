# Messages at the face of a communicator.
from shmring.calls cimport Calls
from shmring.pointtopoint cimport PointToPoint


cdef class MessageCalls(Calls):
    cdef PointToPoint messages
