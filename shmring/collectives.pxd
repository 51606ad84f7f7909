# Collectives: what each of them means, as a talk (small) or a plan (large).
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays cimport array_t
from shmring.engine cimport Engine
from shmring.reduce cimport reduce_kernel


cdef int follow_plan(Engine e, str name, nbytes, uint64_t signature, array_t *x, array_t *out, int root,
                     reduce_kernel kernel, int64_t timeout_ns) except -1
cdef int barrier(Engine e, int64_t timeout_ns) except -1
cdef int all_reduce(Engine e, array_t *x, array_t *out, int op, reduce_kernel kernel, int64_t timeout_ns) except -1
cdef int reduce(Engine e, array_t *x, array_t *out, int root, int op, reduce_kernel kernel,
                int64_t timeout_ns) except -1
cdef int broadcast(Engine e, array_t *x, int root, int64_t timeout_ns) except -1
cdef int all_gather(Engine e, array_t *x, array_t *out, int64_t timeout_ns) except -1
cdef int reduce_scatter(Engine e, array_t *x, array_t *out, int op, reduce_kernel kernel, int64_t timeout_ns) except -1
cdef int gather(Engine e, array_t *x, array_t *out, int root, int64_t timeout_ns) except -1
cdef int scatter(Engine e, array_t *x, array_t *out, int root, int64_t timeout_ns) except -1
cdef int all_to_all(Engine e, array_t *x, array_t *out, int64_t timeout_ns) except -1
cdef int scan(Engine e, array_t *x, array_t *out, bint inclusive, int op, reduce_kernel kernel,
              int64_t timeout_ns) except -1
