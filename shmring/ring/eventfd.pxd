# A descriptor that becomes readable when a ring's counter reaches a target (ring/eventfd.pyx).
from libc.stdint cimport uint32_t, uint64_t

from shmring._c.layout cimport sem_t
from shmring.ring.blocking cimport awaited_t

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t

# What a notifier shares with its thread, which touches no Python object.
ctypedef struct notice_t:
    awaited_t *awaited             # the counters; `arm` fills in their targets
    int n                          # how many of them are waited for
    sem_t requests                 # posted to the thread: by `arm`, and to stop it
    uint32_t is_armed
    uint32_t must_signal
    uint32_t must_stop
    int descriptor


cdef class Notifier:
    cdef notice_t notice
    cdef bint has_thread
    cdef pthread_t thread
    cdef uint32_t generation       # of the process that started the thread
    cdef object mapping            # must outlive the thread

    cdef int arm(self, const uint64_t *until) except -1
    cdef int start(self) except -1
    cdef bint is_signalled(self) noexcept
    cdef void signal(self) noexcept
    cdef void stop(self) noexcept
