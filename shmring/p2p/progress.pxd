# Progress of the requests of one rank: waiting, sleeping, giving up.
from libc.stdint cimport int64_t

from shmring.engine.engine cimport Engine, count_visitor
from shmring.sync.turn cimport give_turn, take_turn
from shmring.p2p.matching cimport Matching
from shmring.p2p.pair_queue cimport pair_queues_t


cdef inline bint take_message_turn(Engine e) except -1:
    """Take the turn; whether that took waiting, in which the communicator may have been closed."""
    cdef bint has_waited = take_turn(&e.message_turn, e.message_turn_queue, e.name)
    count_visitor(e, 1)
    return has_waited


cdef inline void give_message_turn(Engine e) noexcept:
    count_visitor(e, -1)
    give_turn(&e.message_turn, e.message_turn_queue)


# Whether an awaited peer has died or left, which is reported then. The caller has the turn.
cdef bint report_lost_peers(pair_queues_t *q, bint only_dead) noexcept nogil


cdef class Progress(Matching):
    cdef int nfollowers            # threads that wait for the sleeping thread's wake-up
    cdef object followers          # a SimpleQueue that wakes them
    cdef bint awaiting_is_posted   # `awaiting` in the outbox describes a call of this rank

    cdef bytes sleep_one_tick(self, int64_t tick_ns, bytes place)
    cdef int retake_turn(self) except -1
    cdef int give_up(self, list requests, str raised) except -1
