# The sending and the receiving end of the ring of a channel (channels/ring_ends.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring.core.ring.blocking cimport awaited_t
from shmring.core.ring.end cimport RingEnd
from shmring.core.ring.spsc cimport ring_is_gone
from shmring.core.sync.backoff cimport deadline_of, left_until

cdef enum:     # what a sender does when there is no room: positions in POLICIES (channels/memory.py)
    WAITS = 0
    DROPS_NEWEST = 1

cdef enum:     # result of `make_room`, beside READY and LATE
    DROPPED = 5


cdef class RingSender(RingEnd):
    cdef readonly object _channel      # the memory and its settings (channels/memory.py)
    cdef int policy
    cdef bint is_broadcast
    cdef int64_t slow_ns               # a receiver that leaves no room for so long is disconnected; -1: none is
    cdef bint is_overdue               # a task has waited for that long
    cdef uint64_t unsent_nbytes        # of the message that waits for room

    cdef int receivers_left(self) noexcept nogil
    cdef int require_receiver(self) except -1
    cdef object reached(self)
    cdef int make_room(self, uint64_t least, uint64_t most, int64_t timeout_ns) except -1
    cdef int await_receiver(self, uint64_t number, uint64_t least, uint64_t most, int64_t timeout_ns) except -1
    cdef void disconnect(self, uint64_t number) noexcept
    cdef void wake_receivers(self) noexcept nogil
    cdef object full(self)
    cdef object taken_nbytes(self)
    cdef object peer_lost(self)


cdef class RingReceiver(RingEnd):
    cdef readonly object _channel
    cdef bint checks_copies            # the sender may disconnect this end, and overwrite the slots that it is reading

    cdef bint has_next(self, int64_t deadline_ns) except -1
    cdef bint has_pieces(self) except -1
    cdef int wait_for_tail(self, int64_t timeout_ns) except -1
    cdef void fill_in(self, awaited_t *a) noexcept
    cdef bint is_cut_off(self) noexcept
    cdef object stream_over(self)
    cdef object peer_lost(self)


# Whether there is a receiver to send to, as far as one look tells.
cdef inline bint has_receiver(RingSender s) noexcept nogil:
    return not ring_is_gone(s.watch.other) if s.p.nheads == 1 else s.receivers_left() > 0
