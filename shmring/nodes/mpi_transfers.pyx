"""The messages and collectives of `MpiWire` by MPI's own C functions, without the Python calls of mpi4py around them.

They are found in the library that mpi4py has loaded, so nothing is compiled for one MPI. What differs between MPIs is
whether a handle is an int (MPICH and its kind) or a pointer (Open MPI); mpi4py knows its size. Collectives are begun
without blocking and tested, so that a wait has a limit and sees the notices of others.
"""

import ctypes

import numpy as np

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from shmring.arrays cimport numpy_api as cnp
from shmring.engine.kinds cimport (KIND, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, KIND_BROADCAST, KIND_REDUCE,
                                   KIND_REDUCE_SCATTER)
from shmring.engine.signature cimport NO_OP, NO_ROOT
from shmring.nodes.transfers cimport Collective, Transfers, form_t, left_s, work_t

from shmring.dtypes import DTYPE_CODES, DTYPES, OP_CODES, OPS
from shmring.engine.kinds import KINDS
from shmring.nodes.wire import GRACE_S

cnp.import_array()

cdef extern from "nodes/mpi_begin.h":
    ctypedef struct shmring_mpi_collective:
        int kind
        int root
        int count
        uintptr_t function, type, op, comm
    int shmring_begin_by_int(const shmring_mpi_collective *c, const void *x, void *out, void *request) nogil
    int shmring_begin_by_pointer(const shmring_mpi_collective *c, const void *x, void *out, void *request) nogil

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    LARGEST_COUNT = 0x7fffffff
    STATUS_NBYTES = 256     # more than any MPI's
    FIRST_TESTS = 32        # of a wait for a message, before others run, which may be what it waits for
    NTESTS = 4              # between two looks at anything else
    NYIELDS = 256           # of a wait for a message, before it looks for notices,
    NCOLLECTIVE_YIELDS = 1000   # and for a collective
    NPER_ANNOUNCEMENT = 64  # collectives

ctypedef int (*test_function)(void *request, int *flag, void *status) noexcept nogil
ctypedef int (*int_begin)(
    const void *data, int count, int type, int peer, int tag, int comm, void *request) noexcept nogil
ctypedef int (*pointer_begin)(
    const void *data, int count, void *type, int peer, int tag, void *comm, void *request) noexcept nogil

_FUNCTIONS = {
    "all_reduce": "MPI_Iallreduce", "reduce": "MPI_Ireduce", "broadcast": "MPI_Ibcast", "all_gather": "MPI_Iallgather",
    "reduce_scatter": "MPI_Ireduce_scatter_block", "gather": "MPI_Igather", "scatter": "MPI_Iscatter",
    "all_to_all": "MPI_Ialltoall",
}
_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR",
        "land": "LAND", "lor": "LOR"}
_TYPES = {"float64": "DOUBLE", "float32": "FLOAT", "bool": "C_BOOL", "complex64": "C_FLOAT_COMPLEX",
          "complex128": "C_DOUBLE_COMPLEX"}


cdef class MpiTransfers(Transfers):
    """The messages and collectives of one communicator.

    Parameters
    ----------
    wire : MpiWire
    comm : mpi4py.MPI.Intracomm
    ntags : int
        The number of tags of each channel.
    """
    cdef object comm, mpi       # the module mpi4py.MPI
    cdef object library
    cdef int ntags
    cdef bint has_pointers
    cdef uintptr_t isend, irecv, comm_handle, byte_handle
    cdef test_function test_one
    cdef int rank, size
    cdef void *in_place         # MPI_IN_PLACE
    cdef int64_t numbers[2]     # of `find_most`
    cdef MpiCollective most

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
        self.rank, self.size = wire.rank, wire.size
        self.in_place = <void *> <Py_ssize_t> int(MPI.IN_PLACE)
        cdef form_t most = {"kind": KIND_ALL_REDUCE, "root": NO_ROOT, "op": OP_CODES["max"],
                            "dtype": DTYPE_CODES["int64"], "itemsize": sizeof(int64_t), "count": 2}
        self.most = collective_of(self, &most)

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
        if not work.is_pending:
            return 0
        if work.is_python:
            return Transfers.wait(self, work, peer, deadline_ns)
        pending = self.spin(work, peer, FIRST_TESTS, NYIELDS, NTESTS)
        if pending is not None:
            self.wire.await_success(pending.test, peer, left_s(deadline_ns, GRACE_S))
        return 0

    cdef Pending spin(self, work_t *work, int peer, int first_tests, int nyields, int ntests):
        """Test so many times, then ``ntests`` times after each of ``nyields`` yields; None if it is done."""
        cdef Pending pending
        cdef int _i
        if self.test(work, peer, first_tests):
            return None
        with nogil:
            for _i in range(nyields):
                sched_yield()
                if self.test(work, peer, ntests):
                    break
        if not work.is_pending:
            return None
        pending = Pending.__new__(Pending)
        pending.transfers, pending.work, pending.peer = self, work, peer
        return pending

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

    # ---- collectives ----

    cdef Collective collective(self, const form_t *form):
        if form.count * form.itemsize > LARGEST_COUNT:
            return None
        return collective_of(self, form)

    cdef list find_most(self, list numbers, int64_t deadline_ns):
        self.numbers[0], self.numbers[1] = numbers
        self.most.run(self.numbers, self.numbers, deadline_ns)
        return [self.numbers[0], self.numbers[1]]


cdef class Pending:
    """A message or collective that takes longer."""
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


cdef class MpiCollective(Collective):
    """The collective of one form. Made by `collective_of`."""
    cdef MpiTransfers transfers
    cdef shmring_mpi_collective c
    cdef size_t block_nbytes
    cdef bint is_root
    cdef object room            # where MPI may not read from, or write to, the memory of the caller
    cdef work_t *work           # apart, as it is kept if the collective never ends

    def __cinit__(self, MpiTransfers transfers not None):
        self.transfers = transfers
        self.work = <work_t *> PyMem_Calloc(1, sizeof(work_t))
        if self.work == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.work != NULL and not self.work.is_pending:
            PyMem_Free(self.work)

    cdef int run(self, const void *x, void *out, int64_t deadline_ns) except -1:
        cdef MpiTransfers t = self.transfers
        cdef const void *source = x
        cdef void *target = out
        cdef int kind = self.c.kind
        cdef size_t own = t.rank * self.block_nbytes, whole = t.size * self.block_nbytes
        if kind == KIND_BROADCAST:
            target = <void *> x
        elif kind == KIND_ALL_REDUCE or kind == KIND_REDUCE:
            if x == out:
                source = t.in_place
        elif kind == KIND_ALL_TO_ALL:
            if x == out:        # MPI wants that in place on all ranks, or on none
                source = memcpy(self.find_room(whole), x, whole)
        elif kind == KIND_REDUCE_SCATTER:
            if <const char *> x <= <const char *> out < <const char *> x + whole:
                target = self.find_room(self.block_nbytes)
        elif KIND[kind].blocks_out:
            if out != NULL and <const char *> x == <char *> out + own:
                source = t.in_place
        elif self.is_root and <char *> out == <const char *> x + own:
            target = t.in_place
        self.begin(source, target)
        self.wait(deadline_ns)
        if kind == KIND_REDUCE_SCATTER and target != out:
            memcpy(out, target, self.block_nbytes)
        return 0

    cdef void *find_room(self, size_t nbytes) except NULL:
        if self.room is None:
            self.room = np.empty(nbytes + 1, np.uint8)
        return cnp.PyArray_DATA(self.room)

    cdef int begin(self, const void *source, void *target) except -1:
        cdef MpiTransfers t = self.transfers
        cdef int code
        if t.is_disturbed:
            t.wire.raise_disturbance()
        if t.has_pointers:
            code = shmring_begin_by_pointer(&self.c, source, target, &self.work.handle)
        else:
            code = shmring_begin_by_int(&self.c, source, target, &self.work.handle)
        if code != 0:
            raise t.wire.died_error(t.rank, t.mpi.Exception(code))
        self.work.is_pending = True
        if t.history.number % NPER_ANNOUNCEMENT == 0:
            t.wire.announce_call((t.rank + 1) % t.size)
        return 0

    cdef int wait(self, int64_t deadline_ns) except -1:
        cdef MpiTransfers t = self.transfers
        cdef Pending pending = t.spin(self.work, t.rank, NTESTS, NCOLLECTIVE_YIELDS, 1)
        if pending is not None:
            t.wire.await_collective(pending.test, t.history.number, left_s(deadline_ns, GRACE_S))
        return 0


cdef MpiCollective collective_of(MpiTransfers transfers, const form_t *form):
    cdef MpiCollective made = MpiCollective(transfers)
    cdef bint moves = form.op == NO_OP
    MPI = transfers.mpi
    made.c.kind, made.c.root = form.kind, max(form.root, 0)
    made.c.count = form.count * (form.itemsize if moves else 1)
    made.c.function = transfers.function(_FUNCTIONS[KINDS[form.kind].name])
    made.c.type = handle_of(MPI, MPI.BYTE if moves else _type_of(MPI, form.dtype))
    made.c.op = 0 if moves else handle_of(MPI, getattr(MPI, _OPS[OPS[form.op]]))
    made.c.comm = transfers.comm_handle
    made.block_nbytes = form.count * form.itemsize
    made.is_root = form.root == transfers.rank
    return made


cdef object _type_of(MPI, int dtype):
    name = DTYPES[dtype].name
    return getattr(MPI, _TYPES.get(name) or f"{name.upper()}_T")
