# Collectives: what each of them means, as a talk (small) or an execution (large).
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.array_view cimport array_t
from shmring.engine.engine cimport Engine
from shmring.engine.executor cimport execution_t
from shmring.engine.compiled_plan cimport Program
from shmring.arrays.reduce cimport reduce_kernel
from shmring.engine.eager cimport eager_t

# One collective, prepared: an execution along the program that came with it, or a talk if there came None. Both start anew
# each time they are run; the pointers in it must live as long as it does.
ctypedef struct request_t:
    eager_t eager
    execution_t execution


cdef Program follow_plan(Engine e, str name, nbytes, uint64_t signature, array_t *x, array_t *out, int root,
                         reduce_kernel kernel, request_t *request)
cdef Program prepare_request(Engine e, int kind, array_t *x, array_t *out, int root, int op, reduce_kernel kernel,
                            request_t *request)
cdef int run_request(Engine e, Program program, request_t *request, int64_t timeout_ns) except -1
