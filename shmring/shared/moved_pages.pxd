from shmring.memory.mapping cimport Mapping

cdef extern from "placement/numa_calls.h" nogil:
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
