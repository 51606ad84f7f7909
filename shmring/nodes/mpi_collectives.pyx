"""Collectives of MPI, begun without blocking and tested, so that a wait has a limit and sees the notices of others.

They are called by the addresses of MPI's functions, as in `shmring.nodes.mpi_transfers`.
"""

import numpy as np

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

from shmring.arrays cimport numpy_api as cnp
from shmring.engine.kinds cimport (KIND, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, KIND_BROADCAST, KIND_REDUCE,
                                   KIND_REDUCE_SCATTER)
from shmring.nodes.mpi_transfers cimport LARGEST_COUNT, NTESTS, MpiTransfers, handle_of
from shmring.engine.signature cimport NO_OP, NO_ROOT
from shmring.nodes.transfers cimport Collective, form_t, left_s, work_t

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
    NYIELDS = 1000          # of a wait, before it looks for notices
    NPER_ANNOUNCEMENT = 64  # calls

_FUNCTIONS = {
    "all_reduce": "MPI_Iallreduce", "reduce": "MPI_Ireduce", "broadcast": "MPI_Ibcast", "all_gather": "MPI_Iallgather",
    "reduce_scatter": "MPI_Ireduce_scatter_block", "gather": "MPI_Igather", "scatter": "MPI_Iscatter",
    "all_to_all": "MPI_Ialltoall",
}
_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR",
        "land": "LAND", "lor": "LOR"}
_TYPES = {"float64": "DOUBLE", "float32": "FLOAT", "bool": "C_BOOL", "complex64": "C_FLOAT_COMPLEX",
          "complex128": "C_DOUBLE_COMPLEX"}


cdef class MpiCollectives(MpiTransfers):
    """`MpiTransfers` with the collectives of its communicator.

    Parameters
    ----------
    wire : MpiWire
    comm : mpi4py.MPI.Intracomm
    ntags : int
        Of each channel.
    """
    cdef int rank, size
    cdef void *in_place         # MPI_IN_PLACE
    cdef int64_t numbers[2]     # of `find_most`
    cdef MpiCollective most

    def __init__(self, wire, comm, int ntags):
        MpiTransfers.__init__(self, wire, comm, ntags)
        self.rank, self.size = wire.rank, wire.size
        self.in_place = <void *> <Py_ssize_t> int(self.mpi.IN_PLACE)
        cdef form_t most = {"kind": KIND_ALL_REDUCE, "root": NO_ROOT, "op": OP_CODES["max"],
                            "dtype": DTYPE_CODES["int64"], "itemsize": sizeof(int64_t), "count": 2}
        self.most = collective_of(self, &most)

    cdef Collective collective(self, const form_t *form):
        if form.count * form.itemsize > LARGEST_COUNT:
            return None
        return collective_of(self, form)

    cdef list find_most(self, list numbers, int64_t deadline_ns):
        self.numbers[0], self.numbers[1] = numbers
        self.most.run(self.numbers, self.numbers, deadline_ns)
        return [self.numbers[0], self.numbers[1]]


cdef class MpiCollective(Collective):
    """The collective of one form. Made by `collective_of`."""
    cdef MpiCollectives transfers
    cdef shmring_mpi_collective c
    cdef size_t block_nbytes
    cdef bint is_root
    cdef object room            # where MPI may not read from, or write to, the memory of the caller
    cdef work_t *work           # apart, as it is kept if the collective never ends

    def __cinit__(self, MpiCollectives transfers not None):
        self.transfers = transfers
        self.work = <work_t *> PyMem_Calloc(1, sizeof(work_t))
        if self.work == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.work != NULL and not self.work.is_pending:
            PyMem_Free(self.work)

    cdef int run(self, const void *x, void *out, int64_t deadline_ns) except -1:
        cdef MpiCollectives t = self.transfers
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
        cdef MpiCollectives t = self.transfers
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
        cdef MpiCollectives t = self.transfers
        cdef int _i
        if t.test(self.work, t.rank, NTESTS):
            return 0
        with nogil:
            for _i in range(NYIELDS):
                sched_yield()
                if t.test(self.work, t.rank, 1):
                    break
        if self.work.is_pending:
            t.wire.await_collective(self.is_done, t.history.number, left_s(deadline_ns, GRACE_S))
        return 0

    def is_done(self):
        """Whether the collective that was begun last is over on this rank."""
        cdef bint is_done
        with nogil:
            is_done = self.transfers.test(self.work, self.transfers.rank, NTESTS)
        return is_done


cdef MpiCollective collective_of(MpiCollectives transfers, const form_t *form):
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
