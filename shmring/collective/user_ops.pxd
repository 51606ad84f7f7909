# Reductions by user functions, for which there is no kernel.
from shmring.collective.call cimport Call
from shmring.engine.call cimport Executor, call_t


cdef int number_of_callable(object op, int dtype) except -1
cdef Call prepare_user_op(Executor executor, call_t *c, op, held, kept, result)
