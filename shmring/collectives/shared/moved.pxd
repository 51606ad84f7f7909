# Private arrays that become shared memory where they lie (collectives/shared/moved.pyx).
from shmring.core.memory.mapping cimport Mapping
from shmring.collectives.shared.registry cimport Allocation, AllocationRegistry

cdef extern from "core/placement/numa_calls.h" nogil:
    ctypedef struct shmring_nodes:
        pass


cdef class MovedPages:
    cdef Mapping mapping
    cdef char *address          # of the pages; NULL in an object that was never made
    cdef char *mapped           # the same pages of the segment, where `mapping` has them
    cdef char *ready            # a second mapping of them, which `move` moves to `address`; NULL after that
    cdef size_t nbytes
    cdef readonly bint is_moved
    cdef bint is_locked
    cdef tuple advice
    cdef int policy
    cdef shmring_nodes nodes

    cdef object refusal(self, str what, int error)


cdef class MovedArray:
    cdef AllocationRegistry registry
    cdef readonly Allocation allocation
    cdef MovedPages pages
    cdef readonly object owner  # what keeps the memory of the array
    cdef readonly int rank
    cdef char *start            # of the array
    cdef char *end
    cdef char *inner_start      # of its whole pages, which are those of the segment
    cdef char *inner_end
    cdef char *image            # the whole array in the segment, as this process maps that
    cdef bint is_registered

    cdef int share(self) except -1
    cdef int unshare(self, bint is_mapped) except -1
    cdef int release(self) except -1
    cdef void stage_ends(self, const char *address, size_t nbytes) noexcept
    cdef void fetch_ends(self, char *address, size_t nbytes) noexcept
