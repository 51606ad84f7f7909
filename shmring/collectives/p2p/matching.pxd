# Matches messages with requests.
from cpython.object cimport PyObject

from shmring.core.base.heap cimport Heap
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.p2p.pair_queue cimport pair_queues_t
from shmring.core.c.layout cimport shmring_cell
from shmring.collectives.p2p.requests cimport Message, Unexpected, Request


cdef extern from "Python.h" nogil:
    Py_ssize_t PyList_GET_SIZE(PyObject *list)      # of a list that only the thread with the turn changes


cdef class Matching:
    cdef Engine engine
    cdef Heap heap
    cdef pair_queues_t queues
    cdef int rank
    cdef int size
    cdef int next_source           # the rank polled first by a receive from any source, so that none starves
    cdef list posted               # pending receives and probes, in the order of the calls
    cdef list unexpected           # messages without a receive, in the order of arrival
    cdef list outgoing             # by peer: sends queued for the pair queue; the first is under way
    cdef list incoming             # by peer: the Request or Unexpected that receives the message under way
    cdef int nunderway             # queued sends and receives under way
    cdef list finished             # requests with callbacks to run
    cdef bint has_sleeper          # a thread sleeps for messages

    cdef int start_send(self, Request r) except -1
    cdef int continue_receive(self, Request r, Message message) except -1
    cdef int start_recv(self, Request r) except -1
    cdef Unexpected find_unexpected(self, Request r)
    cdef int deliver(self, Unexpected unexpected, Request r) except -1
    cdef int offer(self, Unexpected unexpected) except -1
    cdef int add_unexpected(self, Unexpected unexpected) except -1
    cdef int put_back(self, Request r) except -1
    cdef void post(self, Request r)
    cdef void unpost(self, Request r)
    cdef void count_posted(self, int peer, int change) noexcept nogil
    cdef bint match_and_finish(self) except -1
    cdef bint match_next(self, int peer, shmring_cell *cell) except -1
    cdef int begin(self, int peer, Message message, object receiver, void *target) except -1
    cdef int dequeue(self, Request r) except -1
    cdef int finish(self, Request r, Message message) except -1
    cdef void record(self, Request r) noexcept
    cdef void fail(self, Request r, object error)
    cdef void settled(self, Request r)
    cdef bint withdraw(self, Request r) except -1


cdef inline bint has_requests(Matching m) noexcept nogil:
    """Whether what arrives may be for a request, or must come after what has arrived. The caller has the turn."""
    return (PyList_GET_SIZE(<PyObject *> m.posted) or PyList_GET_SIZE(<PyObject *> m.unexpected)
            or m.nunderway)
