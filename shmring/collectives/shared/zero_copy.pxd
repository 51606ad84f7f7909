# The agreement of the ranks about one large collective: which of its buffers lie in shared arrays, and so its plan.
from libc.stdint cimport int32_t, int64_t, uint64_t

from shmring.collectives.shared.registry cimport AllocationRegistry, place_t
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.engine.compiled_plan cimport Program, execution_t

# Where the buffers of one rank are; fits in the first line of an eager message.
ctypedef struct buffers_t:
    place_t input
    place_t output
    uint64_t is_in_place


cdef class Sharing:
    cdef readonly AllocationRegistry registry
    cdef readonly int nallocations      # ever made; equal on all ranks
    cdef readonly int nresults          # of those, with one segment for all
    cdef public size_t rooted_nbytes    # from this size up the root waits for the others; equal on all ranks
    cdef readonly bint is_one_process   # all ranks are threads of this process: they access private arrays, too,
    cdef readonly bint reads_others     # the kernel lets every rank read the memory of all others, so do they,
    cdef public size_t private_nbytes   # from this size up; equal on all ranks
    cdef readonly uint64_t nzero_copy   # collectives without staging
    cdef int size
    cdef int32_t *pids                  # by rank: its process, if this one can read its memory; else 0
    # Of the current call:
    cdef buffers_t *table               # by rank: where its buffers are
    cdef char *answers                  # by rank: whether it has mapped all buffers that the plan needs
    cdef char **ins                     # by rank: the addresses of its buffers in this process, if the plan needs them
    cdef char **outs
    cdef int32_t *readable              # by rank: the process in which `ins` is an address; 0: this one
    cdef list pins                      # the allocations that must stay mapped until it is over
    cdef char *in_image                 # its buffers in the segments of such arrays; NULL where they are not in one
    cdef char *out_image


cdef Sharing sharing_of(Engine e)
cdef bint may_be_zero_copy(Sharing s, int kind, size_t nbytes) noexcept nogil
cdef int execute_shared(Engine e, Program staged, execution_t *j, int64_t timeout_ns) except -1
