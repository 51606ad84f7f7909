# The collective calls on arrays. Each takes the user's arguments, checks them, and makes the call, now or later.
from libc.stdint cimport int64_t

from shmring.collectives.engine.call cimport Executor, call_t, check_call, refuse_call, refuse_root


cdef object combine(Executor e, int kind, x, out, op, int64_t timeout_ns, async_op)
cdef object reduce(Executor e, x, out, int root, op, int64_t timeout_ns, async_op)
cdef object broadcast(Executor e, x, int root, int64_t timeout_ns, async_op)
cdef object barrier(Executor e, int64_t timeout_ns, async_op)
cdef object with_blocks(Executor e, int kind, x, out, int root, counts, op, int64_t timeout_ns, async_op)
cdef object all_to_all(Executor e, x, out, counts, out_counts, int64_t timeout_ns, async_op)

cdef int number_of(op, int dtype) except -1


cdef inline int check(Executor e, call_t *c) except -1:
    """Raise unless the arguments fit each other."""
    cdef int mistake = check_call(c, e.rank, e.size)
    return refuse_call(mistake, c, e.rank, e.size) if mistake else 0


cdef inline bint is_root(Executor e, int root) except -1:
    """Whether this rank is the root; raises if no rank is."""
    if not 0 <= root < e.size:
        refuse_root(root, e.size)
    return root == e.rank
