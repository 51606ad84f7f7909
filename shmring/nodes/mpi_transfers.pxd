# The messages of one MPI communicator, for compiled code (nodes/mpi_transfers.pyx).
from libc.stdint cimport uint32_t, uintptr_t

from shmring.nodes.transfers cimport Transfers, work_t

cdef enum:
    LARGEST_COUNT = 0x7fffffff
    NTESTS = 4              # between two looks at anything else

ctypedef int (*test_function)(void *request, int *flag, void *status) noexcept nogil


cdef class MpiTransfers(Transfers):
    cdef object comm, mpi       # the module mpi4py.MPI
    cdef object library
    cdef int ntags
    cdef bint has_pointers
    cdef uintptr_t isend, irecv, comm_handle, byte_handle
    cdef test_function test_one

    cdef uintptr_t function(self, str name) except 0
    cdef int _begin(self, uintptr_t function, const void *data, size_t nbytes, int peer, int channel, uint32_t number,
                    work_t *work) except -1
    cdef bint test(self, work_t *work, int peer, int times) except -1 nogil


cdef uintptr_t handle_of(MPI, thing) except? 0
