# A descriptor that becomes readable when a ring's counter comes (channels/eventfd.pyx).
from libc.stdint cimport uint32_t, uint64_t

from shmring.ring.wait_any cimport awaited_t
from shmring._c.layout cimport sem_t


cdef class Alarm:
    cdef awaited_t *rings          # what is waited for; `arm` fills in where each must come to
    cdef int n                     # the first so many
    cdef sem_t *wake               # where
    cdef sem_t asked
    cdef uint32_t is_armed
    cdef uint32_t must_ring
    cdef uint32_t must_stop
    cdef readonly int descriptor
    cdef object mapping            # outlives the thread
    cdef object thread

    cdef int arm(self, const uint64_t *until) except -1
    cdef bint is_rung(self) noexcept
    cdef void ring(self) noexcept
    cdef int stop(self) except -1
    cdef void watch_on(self) noexcept nogil
