# Envelopes of the messages over several nodes (nodes/mailbox.pyx).
from libc.stdint cimport uint64_t

from shmring.p2p.requests cimport Message, Request

cdef enum:
    MESSAGE, ACK, CREDIT, LEAVING       # kinds of envelopes
    NFIELDS = 5                         # kind, number, tag, nbytes, code of the dtype, before the content


cdef class Arrived:
    cdef Message message
    cdef uint64_t number
    cdef object content            # None if the sender still has it


cdef class Mailbox:
    cdef object wire
    cdef int peer
    cdef readonly bint is_read     # the peer is known to receive envelopes
    cdef uint64_t nmessages
    cdef uint64_t nsent, ncredited, nreceived    # envelopes
    cdef object kept               # works of the envelopes without a credit, with their memory
    cdef object without_room       # short sends that wait for a credit, with their numbers
    cdef dict long_sends           # by number, with their works

    cdef int post(self, int kind, uint64_t number, int tag, uint64_t nbytes, int code, object content) except -1
    cdef int flush(self, object left_s) except -1
    cdef list take_credit(self)
    cdef bint has_room_for(self, uint64_t number)
    cdef int note_read(self) except -1
