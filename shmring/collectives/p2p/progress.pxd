# Progress of the requests of one rank: waiting, sleeping, giving up.
from libc.stdint cimport int64_t, uint64_t

from shmring.core.c.atomics cimport store_relaxed_u64
from shmring.collectives.engine.engine cimport Engine, count_visitor
from shmring.collectives.engine.signature cimport pack_signature
from shmring.core.sync.turn cimport give_turn, take_turn
from shmring.collectives.p2p.matching cimport Matching
from shmring.collectives.p2p.requests cimport wait_t

cdef enum:
    LATE = 3      # what a wait ends with, beside READY, UNREADY and TROUBLE: the timeout is over


cdef inline bint take_message_turn(Engine e) except -1:
    """Take the turn; whether that took waiting, in which the communicator may have been closed."""
    cdef bint has_waited = take_turn(&e.message_turn, e.name)
    count_visitor(e, 1)
    return has_waited


cdef inline void give_message_turn(Engine e) noexcept:
    count_visitor(e, -1)
    give_turn(&e.message_turn)


cdef inline uint64_t awaited(int kind, int peer, int tag) noexcept nogil:
    """What a rank posts that waits for a message; other ranks use it in timeout errors."""
    return pack_signature(kind, 0, 0, peer, <uint64_t> (tag + 1))


cdef class Progress:
    cdef Engine engine
    cdef Matching matching
    cdef int nfollowers            # threads that wait for the sleeping thread's wake-up
    cdef object followers          # a SimpleQueue that wakes them
    cdef bint awaiting_is_posted   # `awaiting` in the outbox describes a call of this rank

    cdef bint await_all(self, list requests, wait_t *wait) except -1
    cdef int give_up(self, list requests, str raised) except -1
    cdef int before_sleep(self, wait_t *wait, uint64_t what) noexcept nogil
    cdef bint sleep_free(self, wait_t *wait) noexcept nogil
    cdef void note_wait(self, int peer, int64_t began_ns) noexcept nogil
    cdef inline void end_waits(self) noexcept nogil:
        """This rank awaits nothing any longer. The communicator may be closed."""
        if self.awaiting_is_posted:
            self.awaiting_is_posted = False
            if not self.engine.is_closed:      # a signal handler may have closed it
                store_relaxed_u64(&self.engine.c.own.awaiting, 0)

    cdef int poll(self, wait_t *wait, bint only_dead) except -1
    cdef bytes sleep_one_tick(self, wait_t *wait, bytes place)
    cdef int lead(self, wait_t *wait) noexcept
    cdef int follow(self, wait_t *wait) except -1
    cdef int retake_turn(self) except -1
    cdef void wake_followers(self) noexcept
