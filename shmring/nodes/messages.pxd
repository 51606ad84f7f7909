# Messages between the ranks of several nodes (nodes/messages.pyx).
from libc.stdint cimport int64_t

from shmring.nodes.mailbox cimport Arrived
from shmring.p2p.requests cimport Message, Messages, Request, wait_t
from shmring.sync.long_waits cimport notes_t
from shmring.sync.turn cimport Turn


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
    cdef int pause(self, int64_t since_ns, notes_t *notes, object awaited) except -1
    cdef int check_peer(self, int peer, bint any_is_allowed) except -1
