# Progress of the requests of one rank: waiting, sleeping, giving up.
from libc.stdint cimport int64_t

from shmring.engine.turn cimport turn_t
from shmring.p2p.matching cimport Matching


cdef class Progress(Matching):
    cdef turn_t turn
    cdef object turn_queue
    cdef int nfollowers            # threads that wait for the sleeping thread's wake-up
    cdef object followers          # a SimpleQueue that wakes them
    cdef bint awaiting_is_posted   # `awaiting` in the outbox describes a call of this rank

    cdef int sleep_one_tick(self, int64_t tick_ns) except -1
    cdef int retake_turn(self) except -1
    cdef int give_up(self, list requests, str raised) except -1
