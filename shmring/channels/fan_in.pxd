# The receiver of a fan-in (channels/fan_in.pyx).
from libc.stdint cimport int64_t

from shmring.channels.ring_ends cimport RingReceiver
from shmring.ring.blocking cimport awaited_t, wait_t
from shmring.ring.eventfd cimport Notifier


cdef class FanInReceiver:
    cdef readonly list rings       # the memory of each (channels/multi_ring.py)
    cdef list receivers
    cdef wait_t ways               # to those that are not over
    cdef int count, turn
    cdef list over                 # by sender: whether nothing more will come from it
    cdef RingReceiver chosen       # by the last next_ready
    cdef Notifier notifier
    cdef bint is_taken, is_closed, is_busy
    cdef readonly int last_sender

    cdef int prepare(self) except -1
    cdef int require_usable(self) except -1
    cdef int close_end(self, bint in_good_order) except -1
    cdef RingReceiver choose(self, int64_t timeout_ns, int64_t deadline_ns)
    cdef object sender_lost(self, int i)
    cdef RingReceiver await_ready(self, int64_t timeout_ns, int64_t deadline_ns)
    cdef int fill_in(self, awaited_t *awaited, int64_t timeout_ns) except -1
    cdef int wait(self, int64_t timeout_ns) except -1
