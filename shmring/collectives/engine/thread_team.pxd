# Teams: the threads of one rank that share a large collective. Thread 0 is the caller, the others are its helpers.
from libc.stdint cimport int64_t, uint32_t

from shmring.core.base.heap cimport Heap
from shmring.collectives.engine.compiled_plan cimport execution_t, program_t
from shmring.collectives.engine.rounds cimport engine_t
from shmring.core.sync.backoff cimport patience_t


cdef extern from "collectives/engine/team.h" nogil:
    ctypedef struct shmring_team:
        int nhelpers
        int64_t spin_ns

# What one helper works with: its thread's areas in the outboxes, and its share of the current call.
ctypedef struct helper_t:
    engine_t engine
    execution_t execution
    patience_t patience
    int outcome


cdef class Team:
    cdef shmring_team *threads
    cdef helper_t **helpers             # by thread; the first is NULL: the caller uses its communicator's engine
    cdef readonly unsigned long ncalls  # calls shared among the threads
    cdef readonly object limits         # for the plans of shares
    cdef readonly double split_nbytes   # messages from this size up are shared among the threads
    cdef Heap heap
    cdef patience_t patience           # of the caller, until all helpers have done
    cdef uint32_t generation           # of the process that has the threads

    cdef int nthreads(self) noexcept nogil
    cdef int settle(self, engine_t *caller, char **areas, size_t area_nbytes, size_t slot_nbytes) except -1
    cdef void begin(self, execution_t *j, int64_t timeout_ns) noexcept nogil
    cdef bint await_helpers(self) noexcept nogil
    cdef int outcome(self) noexcept nogil
    cdef void keep(self, int nthreads) noexcept
