# The executor of one machine, and its requests: eager (small) or planned (large).
from libc.stdint cimport int64_t, uint64_t

from shmring.core.arrays.array_view cimport array_t
from shmring.core.base.heap cimport Heap
from shmring.collectives.engine.call cimport Executor, Prepared, call_t
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.engine.compiled_plan cimport Program, execution_t
from shmring.collectives.engine.eager cimport eager_t

# One collective: the execution of the compiled plan that came with it, or an eager exchange if that is None. Either can
# be run repeatedly; the memory behind its pointers must live as long as it does.
ctypedef struct request_t:
    eager_t eager
    execution_t execution


cdef inline char *payload_of(array_t *x) noexcept nogil:
    """The memory of ``x``; never NULL, where some frameworks place empty arrays: an eager NULL is "sends nothing"."""
    return <char *> x.data if x.data != NULL else <char *> b""


cdef bint fill_eager(Engine e, call_t *c, eager_t *t) noexcept nogil
cdef void fill_execution(Engine e, call_t *c, execution_t *j) noexcept nogil
cdef const int64_t *copy_counts(call_t *c, int size, Heap memory) except NULL
cdef Program prepare_request(Engine e, call_t *c, request_t *request)
cdef int run_request(Engine e, Program program, request_t *request, int64_t timeout_ns) except -1


cdef class LocalExecutor(Executor):
    cdef Engine local              # `engine`, with its type


cdef class LocalCall(Prepared):
    cdef Engine engine
    cdef Program program         # None: the request is eager
    cdef Heap memory             # of the counts of the request; None: it has none
    cdef call_t call             # without counts
    cdef request_t request
