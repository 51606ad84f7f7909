# A collective call whose arguments are checked and whose pointers are taken, to be made later or often.
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.array_view cimport array_t
from shmring.kernel.reduce cimport reduce_kernel
from shmring.collective.schedule cimport request_t
from shmring.engine.compiled_plan cimport Program
from shmring.engine.engine cimport Engine


cdef class Prepared:
    cdef Engine engine
    cdef Program program         # None: the request is eager
    cdef request_t request
    cdef int64_t timeout_ns
    cdef object held             # keeps the memory alive that is read
    cdef object kept             # and that which is written; may be a copy, to be given back
    cdef object result           # what the call returns

    cdef object run(self)
    cdef bint has_copies(self) except -1
    cdef uint64_t signature(self) noexcept
    cdef void sign(self, uint64_t signature) noexcept


cdef object prepare(Prepared call, Engine engine, int kind, array_t *x, array_t *out, int root, int op,
                    reduce_kernel kernel, int64_t timeout_ns, held, kept, result)
cdef object dispatch(Prepared call, async_op)
cdef object plan(comm, collective, tuple args, dict kwargs)
