# Which message goes where.
from libc.stdint cimport uint64_t

from shmring.engine.engine cimport Engine
from shmring.p2p.pair_queue cimport pair_queues_t
from shmring._c.layout cimport shmring_cell
from shmring.p2p.requests cimport Message, Unexpected, Request, Waiter


cdef class Matching(Waiter):
    cdef Engine engine
    cdef list blocks
    cdef pair_queues_t l
    cdef int rank
    cdef int size
    cdef int turn_of_source        # where looking for anybody's message begins: nobody is passed over for ever
    cdef list posted               # receives and probes that wait, in the order they were made
    cdef list unexpected_list              # messages put aside, in the order they came
    cdef list outgoing             # by peer: sends that wait for the lane, the first of them under way
    cdef list incoming             # by peer: the Request or Unexpected that the message under way goes to
    cdef int nunderway             # sends queued and receives under way
    cdef list finished             # requests with callbacks to run
    cdef bint is_awaited           # a thread dozes

    cdef int start_send(self, Request r) except -1
    cdef int go_on_receiving(self, Request r, Message message) except -1
    cdef int start_recv(self, Request r) except -1
    cdef Unexpected find_unexpected(self, Request r)
    cdef int open_unexpected(self, Unexpected unexpected, Request r) except -1
    cdef int offer(self, Unexpected unexpected) except -1
    cdef void post(self, Request r)
    cdef void unpost(self, Request r)
    cdef void want(self, int peer, int more) noexcept
    cdef bint attend(self) except -1
    cdef bint match_next(self, int peer, shmring_cell *cell) except -1
    cdef int begin(self, int peer, Message message, object whose, void *target) except -1
    cdef int move(self, int peer, bint inwards) except -1
    cdef int finish(self, Request r, Message message) except -1
    cdef void fail(self, Request r, object error)
    cdef void settled(self, Request r)
    cdef bint withdraw(self, Request r) except -1
