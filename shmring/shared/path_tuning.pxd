# Whether a collective on shared arrays is better staged, learned from the time from call to call.
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.store_tuning cimport stores_t
from shmring.engine.compiled_plan cimport Program


cdef class PathTrials:
    cdef readonly Program shared    # the plan on shared arrays
    cdef uint64_t nstaged       # the next calls that are staged without an agreement; equal on all ranks
    cdef bint is_staged         # the last call that could have been on shared arrays was staged; equal on all ranks
    # Of the rank that decides:
    cdef stores_t trials        # by window
    cdef uint64_t window        # calls in one
    cdef uint64_t left          # of them; 0 once the ranks know that the rest is staged
    cdef int way                # of this window
    cdef bint is_mixed          # some of its calls could only take another path, so its time does not count
    cdef int64_t begun_ns       # when it began, if it is a trial; else 0

    cdef uint64_t count_call(self) noexcept nogil
    cdef void next_window(self) noexcept nogil
