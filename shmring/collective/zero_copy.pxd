# The agreement about one large collective: which of its buffers lie in shared arrays, and so which plan it takes.
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.array_view cimport array_t
from shmring.collective.registry cimport Directory, place_t
from shmring.engine.engine cimport Engine
from shmring.engine.executor cimport execution_t
from shmring.engine.compiled_plan cimport Program

# What one rank tells the others about its buffers; fits the first line of an eager.
ctypedef struct word_t:
    place_t input
    place_t output
    uint64_t is_in_place


cdef class Sharing:
    cdef readonly Directory directory
    cdef readonly int nallocations      # ever made; all ranks count alike
    cdef readonly int nresults          # of those, with one segment for all
    cdef public size_t rooted_nbytes    # from so many bytes up the root is not left to run ahead; equal on all ranks
    cdef readonly uint64_t nmapped      # collectives that went without staging
    cdef int size
    # Of the call under way:
    cdef word_t *table                  # the words, by rank
    cdef char *answers                  # by rank: whether it has all that is needed
    cdef char **ins                     # by rank: its buffers' addresses here, of those that the plan reaches
    cdef char **outs
    cdef list pins                      # the allocations that must stay mapped until it is over


cdef int execute_shared(Engine e, Program staged, execution_t *j, int64_t timeout_ns) except -1
cdef int refuse_result(Engine e, array_t *x, array_t *out) except -1
