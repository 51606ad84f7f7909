# Messages between the ranks of several nodes (nodes/messages.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring.p2p.requests cimport Message, Messages, Request, wait_t
from shmring.sync.turn cimport Turn


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
    cdef bint has_room_for(self, uint64_t number)


cdef class NodesMessages(Messages):
    cdef object group, wire
    cdef Turn turn
    cdef bint is_listening
    cdef list posted, arrived, finished
    cdef dict mailboxes, lost
    cdef set left

    cdef Request post_send(self, object x, object keeper, object content, int code, int dst, int tag)
    cdef bint await_request(self, Request r, wait_t *wait) except -1
    cdef Message await_message(self, Request r, wait_t *wait)
    cdef int progress(self) except -1
    cdef int note(self, object envelope, int source) except -1
    cdef int match(self, list pairs) except -1
    cdef int receive_content(self, Arrived arrived, object data) except -1
    cdef Arrived find(self, int src, int tag)
    cdef Arrived await_arrived(self, int src, int tag, int64_t timeout_ns, bint is_object)
    cdef int finish(self, Request r, Message message, object error) except -1
    cdef int fail_lost(self) except -1
    cdef int pause(self, int64_t since_ns) except -1
    cdef int check_peer(self, int peer, bint any_is_allowed) except -1
