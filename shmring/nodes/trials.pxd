# Whether a call is made by a plan or by the wire's own collective (nodes/trials.pyx).
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    PLAN = 0
    WIRE = 1
    NTRIED = 20             # calls of each way in a look,
    NTIMED = 16             # of which the last ones are timed: the first ones find what the other way has left


cdef class Trials:
    cdef int64_t times[2][NTIMED]
    cdef uint64_t ncalls
    cdef int64_t ended_ns       # when the latest call was over
    cdef uint64_t next_look     # the call with which the next look begins
    cdef readonly int best
    cdef readonly list us       # of a call in each way, when last looked at; None before

    cpdef int begin(self) noexcept
    cpdef bint note(self, int64_t ns) noexcept
