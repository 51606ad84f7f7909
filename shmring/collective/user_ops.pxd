# Reductions by user functions, for which there is no kernel.
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t
from shmring.engine.engine cimport Engine
from shmring.collective.persistent cimport Prepared


cdef int number_of_callable(object op, int dtype) except -1
cdef Prepared prepare_user_op(Engine engine, int kind, array_t *x, array_t *out, int root, op, int64_t timeout_ns, held,
                           kept, result)
