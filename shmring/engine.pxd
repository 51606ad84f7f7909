# The engine of one communicator in one process: its memory, its turn-taking, its end.
from libc.stdint cimport int64_t

from shmring.journey cimport journey_t
from shmring.program cimport Program
from shmring.rounds cimport engine_t
from shmring.talk cimport talk_t


cdef class Engine:
    cdef engine_t c
    cdef readonly list segments
    cdef readonly object config
    cdef dict programs
    cdef object trouble            # the exception every further call raises, once broken
    cdef int owner_pid
    cdef bint busy
    cdef int waiting
    cdef object turn
    cdef bint closed

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int talk(self, talk_t *t, int64_t timeout_ns) except -1
    cdef int travel(self, Program program, journey_t *j, int64_t timeout_ns) except -1
    cdef int raise_trouble(self) except -1
    cdef int look_after_signals(self) except -1
