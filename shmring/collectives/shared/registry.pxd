# The registry of a communicator's shared arrays: from an address to (allocation, owner, offset), and back.
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    NOWHERE = 0                # in no shared array
    ANYWHERE = 0xffffffff      # private, but accessible to all ranks: the offset is its address in its process

# Where an array starts, independent of the addresses of one process.
ctypedef struct place_t:
    uint32_t allocation     # its number, from 1 on; NOWHERE; ANYWHERE
    uint32_t owner          # the rank of the segment
    uint64_t offset         # bytes into its data

ctypedef struct range_t:    # one segment as this process maps it, or an array that was moved into one
    char *start
    char *end
    uint32_t allocation
    uint32_t owner
    void *moved             # its MovedArray, borrowed: it removes itself when it is private again; NULL for a segment

ctypedef struct entry_t:
    uint32_t allocation
    char **bases            # by rank: the address of its data in this process
    void *object            # the Allocation, borrowed: it removes itself when it is freed


# Before the registry borrows a reference to an object.
cdef void may_be_found(found)


cdef class AllocationRegistry:
    cdef range_t *ranges    # by address
    cdef entry_t *entries   # by number
    cdef int nranges
    cdef int nentries
    cdef int capacity       # of both
    cdef bint is_one_process    # other ranks can access any address

    cdef int reserve(self, int nranges) except -1
    cdef void insert(self, range_t new) noexcept
    cdef int add(self, Allocation allocation) except -1
    cdef void remove(self, Allocation allocation) noexcept
    cdef void remove_moved(self, void *moved) noexcept
    cdef range_t *range_at(self, const void *address) noexcept
    cdef place_t place_of(self, const void *address, size_t nbytes) noexcept
    cdef entry_t *entry_of(self, uint32_t allocation) noexcept
    cdef Allocation allocation_of(self, uint32_t number)
    cdef object moved_at(self, const void *address)


cdef class Allocation:
    cdef AllocationRegistry registry
    cdef readonly list segments
    cdef readonly int number
    cdef readonly int size
    cdef readonly size_t nbytes
    cdef readonly object offsets    # by rank: where it begins after the header; None: there
    cdef readonly bint is_result    # one segment for all ranks
    cdef bint is_registered
    cdef char **bases


cdef class Area:
    cdef readonly Allocation allocation
    cdef readonly int rank
