"""The messages of `MpiWire` by MPI's own C functions, without the Python calls of mpi4py around them.

They are found in the library that mpi4py has loaded, so nothing is compiled for one MPI. What differs between MPIs is
whether a handle is an int (MPICH and its kind) or a pointer (Open MPI); mpi4py knows its size.
"""

import ctypes

from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from shmring.nodes.transfers cimport Transfers, left_s, work_t

from shmring.nodes.wire import GRACE_S

cdef enum:
    STATUS_NBYTES = 256     # more than any MPI's
    FIRST_TESTS = 32        # of a wait, before others run, which may be what it waits for
    NYIELDS = 256           # before it looks for notices

ctypedef int (*int_begin)(
    const void *data, int count, int type, int peer, int tag, int comm, void *request) noexcept nogil
ctypedef int (*pointer_begin)(
    const void *data, int count, void *type, int peer, int tag, void *comm, void *request) noexcept nogil

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef class MpiTransfers(Transfers):
    """The messages of one communicator.

    Parameters
    ----------
    wire : MpiWire
    comm : mpi4py.MPI.Intracomm
    ntags : int
        Of each channel.
    """
    def __init__(self, wire, comm, int ntags):
        Transfers.__init__(self, wire)
        from mpi4py import MPI

        size = MPI._sizeof(MPI.Comm)
        if size not in (sizeof(int), sizeof(void *)) or MPI._sizeof(MPI.Status) > STATUS_NBYTES:
            raise RuntimeError(f"this MPI has handles of {size} bytes, which shmring does not know")
        self.library = ctypes.CDLL(MPI.__file__)
        self.comm, self.mpi, self.ntags, self.has_pointers = comm, MPI, ntags, size == sizeof(void *)
        self.isend, self.irecv = self.function("MPI_Isend"), self.function("MPI_Irecv")
        self.test_one = <test_function> self.function("MPI_Test")
        self.comm_handle, self.byte_handle = handle_of(MPI, comm), handle_of(MPI, MPI.BYTE)

    cdef uintptr_t function(self, str name) except 0:
        """The address of a function of MPI."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value

    cdef int send(self, const void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1:
        if nbytes > LARGEST_COUNT:  # mpi4py knows how
            return Transfers.send(self, data, nbytes, owner, peer, channel, number, work)
        return self._begin(self.isend, data, nbytes, peer, channel, number, work)

    cdef int recv(self, void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1:
        if nbytes > LARGEST_COUNT:
            return Transfers.recv(self, data, nbytes, owner, peer, channel, number, work)
        return self._begin(self.irecv, data, nbytes, peer, channel, number, work)

    cdef int _begin(self, uintptr_t function, const void *data, size_t nbytes, int peer, int channel, uint32_t number,
                    work_t *work) except -1:
        cdef int tag = channel * self.ntags + <int> (number % <uint32_t> self.ntags), code
        if self.is_cut:
            raise self.wire.lost_error(peer)
        if self.has_pointers:
            code = (<pointer_begin> function)(
                data, <int> nbytes, <void *> self.byte_handle, peer, tag, <void *> self.comm_handle, &work.handle)
        else:
            code = (<int_begin> function)(
                data, <int> nbytes, <int> self.byte_handle, peer, tag, <int> self.comm_handle, &work.handle)
        if code != 0:
            raise self.wire.died_error(peer, self.mpi.Exception(code))
        work.is_pending, work.is_python = True, False
        return 0

    cdef int wait(self, work_t *work, int peer, int64_t deadline_ns) except -1:
        cdef Pending pending
        cdef int _i
        if not work.is_pending:
            return 0
        if work.is_python:
            return Transfers.wait(self, work, peer, deadline_ns)
        if self.test(work, peer, FIRST_TESTS):
            return 0
        with nogil:
            for _i in range(NYIELDS):
                sched_yield()
                if self.test(work, peer, NTESTS):
                    break
        if work.is_pending:
            pending = Pending.__new__(Pending)
            pending.transfers, pending.work, pending.peer = self, work, peer
            self.wire.await_success(pending.test, peer, left_s(deadline_ns, GRACE_S))
        return 0

    cdef bint test(self, work_t *work, int peer, int times) except -1 nogil:
        """Whether it is done, after so many tests."""
        cdef char status[STATUS_NBYTES]
        cdef int flag = 0, code = 0, _i
        for _i in range(times):
            code = self.test_one(&work.handle, &flag, status)
            if flag or code != 0:
                break
        if code != 0:
            with gil:
                raise self.wire.died_error(peer, self.mpi.Exception(code))
        work.is_pending = not flag
        return flag


cdef class Pending:
    """A message that takes longer."""
    cdef MpiTransfers transfers
    cdef work_t *work
    cdef int peer

    def test(self):
        """Whether it is done."""
        cdef bint is_done = True
        if self.work != NULL:
            with nogil:
                is_done = self.transfers.test(self.work, self.peer, NTESTS)
        return is_done


cdef uintptr_t handle_of(MPI, thing) except? 0:
    """The handle of an object of mpi4py: an int, or a pointer."""
    cdef uintptr_t handle = 0
    cdef uintptr_t address = MPI._addressof(thing)
    memcpy(&handle, <void *> address, MPI._sizeof(thing))   # of an int: little-endian, as all that shmring supports
    return handle
