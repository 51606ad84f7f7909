# Prepared calls: one collective, arguments checked and pointers taken.
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.array_view cimport array_t
from shmring.collective.schedule cimport request_t
from shmring.engine.engine cimport Engine
from shmring.engine.compiled_plan cimport Program
from shmring.arrays.reduce cimport reduce_kernel


cdef class Prepared:
    cdef Engine engine
    cdef Program program
    cdef request_t request
    cdef int64_t timeout_ns
    cdef object held             # keeps the memory alive that is read
    cdef object kept             # and that which is written; may be a copy, to be given back
    cdef object result           # what the call returns

    cdef object run(self)
    cdef bint has_copies(self) except -1
    cdef uint64_t word(self) noexcept


cdef object prepare(Prepared call, Engine engine, int kind, array_t *x, array_t *out, int root, int op,
                    reduce_kernel kernel, int64_t timeout_ns, held, kept, result)
cdef object do(Prepared call, async_op)
