# A collective call with its arguments, to be made later or often.
from shmring.collectives.engine.call cimport Executor, Prepared, call_t


cdef class Plan:
    cdef Executor executor
    cdef Prepared prepared       # what the executor has made of the checked call
    cdef object held             # keeps the memory alive that is read
    cdef object kept             # and that which is written; may be a copy, to be given back
    cdef object result           # what the call returns

    cdef object run(self)
    cdef int make(self) except -1
    cdef object conclude(self)
    cdef bint has_copies(self) except -1


cdef object prepare(Plan plan, Executor executor, call_t *c, held, kept, result)
cdef object dispatch(Plan plan, async_op)
cdef object plan(comm, collective, tuple args, dict kwargs)

# Of reductions by functions, for which there is no kernel.
cdef int number_of_callable(object op, int dtype) except -1
cdef Plan prepare_user_op(Executor executor, call_t *c, op, held, kept, result)
