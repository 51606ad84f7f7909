# A checked collective, and what executes it: the interface between the calls and the executors.
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.array_view cimport array_t
from shmring.engine.signature cimport NO_OP
from shmring.kernel.reduce cimport reduce_kernel

# A collective with all of its arguments. Arrays that this rank neither sends nor receives describe the other array:
# `out` is `x` on a rank that only sends and in place, and on a rank that only receives `x` has the size of the sender's.
ctypedef struct call_t:
    int kind                       # engine/kinds.h
    int root                       # NO_ROOT: none
    int op                         # NO_OP: none, or a Python function
    reduce_kernel kernel           # set by `check_call`
    array_t x
    array_t out
    int64_t timeout_ns             # < 0: no limit

# What is wrong with a call; `refuse_call` has the texts.
cdef enum:
    SOUND = 0
    BAD_ROOT
    BAD_OP
    BAD_DTYPE
    BAD_COUNT
    OVERLAPPING


cdef inline void open_call(call_t *c, int kind, int root, int64_t timeout_ns) noexcept nogil:
    """A call whose arrays are still to be set."""
    c.kind = kind
    c.root = root
    c.op = NO_OP
    c.kernel = NULL
    c.timeout_ns = timeout_ns


cdef int check_call(call_t *c, int rank, int size) noexcept nogil
cdef int refuse_call(int mistake, call_t *c, int rank, int size) except -1


# A checked call that an executor has made ready, to be made any number of times.
cdef class Prepared:
    cdef int run(self) except -1
    cdef uint64_t signature(self) noexcept
    cdef void sign(self, uint64_t signature) noexcept


# Executes checked calls: of one machine (`shmring.collective.local`), or of several.
cdef class Executor:
    cdef readonly int rank
    cdef readonly int size
    cdef readonly object engine          # what asynchronous work is submitted to, and knows whether it is closed

    cdef int run(self, call_t *call) except -1
    cdef Prepared prepare(self, call_t *call)
