# Collectives: what each of them means, as a talk (small) or a journey (large).
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.array_view cimport array_t
from shmring.engine.engine cimport Engine
from shmring.engine.executor cimport journey_t
from shmring.engine.compiled_plan cimport Program
from shmring.arrays.reduce cimport reduce_kernel
from shmring.engine.eager cimport talk_t

# One collective, prepared: a journey along the program that came with it, or a talk if there came None. Both start anew
# each time they are run; the pointers in it must live as long as it does.
ctypedef struct errand_t:
    talk_t talk
    journey_t journey


cdef Program follow_plan(Engine e, str name, nbytes, uint64_t signature, array_t *x, array_t *out, int root,
                         reduce_kernel kernel, errand_t *errand)
cdef Program prepare_errand(Engine e, int kind, array_t *x, array_t *out, int root, int op, reduce_kernel kernel,
                            errand_t *errand)
cdef int run_errand(Engine e, Program program, errand_t *errand, int64_t timeout_ns) except -1
