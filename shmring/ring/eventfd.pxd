# A descriptor that becomes readable when a ring's counter reaches a target (ring/eventfd.pyx).
from libc.stdint cimport uint32_t, uint64_t

from shmring._c.layout cimport sem_t
from shmring.ring.blocking cimport awaited_t, watch_t

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t

# What a notifier shares with its thread, which touches no Python object.
ctypedef struct notice_t:
    awaited_t *awaited             # `interrupts`, then the counters that `arm` was given
    int n                          # how many there are in all
    sem_t requests                 # posted to the thread: by `arm`, and to stop it
    uint32_t is_armed
    uint32_t must_stop
    int descriptor
    uint64_t interrupts            # how often `signal` has ended a wait: a counter that the thread awaits, too,
    uint64_t asleep                # by this waiter word
    watch_t watch


cdef class Notifier:
    cdef notice_t notice
    cdef int most                  # counters
    cdef bint has_thread
    cdef pthread_t thread
    cdef uint32_t generation       # of the process that started the thread
    cdef object mapping            # must outlive the thread

    cdef int arm(self, const awaited_t *awaited, int n) except -1
    cdef bint is_armed_for(self, const awaited_t *awaited, int n) noexcept
    cdef int start(self) except -1
    cdef bint is_signalled(self) noexcept
    cdef void signal(self) noexcept
    cdef void stop(self) noexcept
