# A descriptor that becomes readable when a ring's counter reaches a target (channels/eventfd.pyx).
from libc.stdint cimport uint32_t, uint64_t

from shmring._c.layout cimport sem_t
from shmring.ring.wait_any cimport awaited_t


cdef class Notifier:
    cdef awaited_t *awaited        # the counters; `arm` fills in their targets
    cdef int n                     # how many of them are waited for
    cdef sem_t *wake               # the semaphore that their waiter words post
    cdef sem_t requests            # posted to the thread: by `arm`, and to stop it
    cdef uint32_t is_armed
    cdef uint32_t must_signal
    cdef uint32_t must_stop
    cdef readonly int descriptor
    cdef object mapping            # must outlive the thread
    cdef object thread

    cdef int arm(self, const uint64_t *until) except -1
    cdef bint is_signalled(self) noexcept
    cdef void signal(self) noexcept
    cdef int stop(self) except -1
    cdef void wait_and_signal(self) noexcept nogil
