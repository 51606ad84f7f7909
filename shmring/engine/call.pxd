# A checked collective, and what executes it: the interface between the calls and the executors.
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays.array_view cimport array_t
from shmring.arrays.outputs cimport overlaps
from shmring.engine.kinds cimport KIND, has_root, is_receiver, is_sender
from shmring.engine.signature cimport NO_OP
from shmring.kernel.reduce cimport find_kernel, reduce_kernel

# A collective with all of its arguments. An array that this rank does not use describes the other one: `out` is `x` in
# place and on a rank that only sends; on a rank that only receives, `x` has the size of the sender's.
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


cdef inline bint is_overlapping(call_t *c, int rank, size_t parts, size_t times) noexcept nogil:
    """Whether x and out overlap and are not in place: there, a smaller one is this rank's block of the other."""
    if parts == times and c.x.data == c.out.data:
        return False
    if parts > times:
        return overlaps(&c.out, &c.x, rank * c.out.nbytes)
    return overlaps(&c.x, &c.out, rank * c.x.nbytes if parts < times else 0)


cdef inline int check_call(call_t *c, int rank, int size) noexcept nogil:
    """Check the arguments against each other, and find the kernel: SOUND, or what is wrong."""
    cdef size_t parts = size if KIND[c.kind].blocks_in else 1      # of x, each as large as out or a block of it
    cdef size_t times = size if KIND[c.kind].blocks_out else 1
    if has_root(c.kind) and not 0 <= c.root < size:
        return BAD_ROOT
    if KIND[c.kind].takes_op and c.op != NO_OP:
        c.kernel = find_kernel(c.op, c.x.dtype)
        if c.kernel == NULL:
            return BAD_OP
    if not is_sender(c.kind, rank, c.root) or not is_receiver(c.kind, rank, c.root):
        return SOUND
    if c.out.dtype != c.x.dtype:
        return BAD_DTYPE
    if c.out.count * parts != c.x.count * times:
        return BAD_COUNT
    return OVERLAPPING if is_overlapping(c, rank, parts, times) else SOUND


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
