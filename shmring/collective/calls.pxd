# The collective calls on arrays. Each takes the user's arguments, checks them, and makes the call, now or later.
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t
from shmring.engine.engine cimport Engine
from shmring.kernel.reduce cimport reduce_kernel


cdef object combine(Engine e, int kind, x, out, op, int64_t timeout_ns, async_op)
cdef object reduce(Engine e, x, out, int root, op, int64_t timeout_ns, async_op)
cdef object reduce_scatter(Engine e, x, out, counts, op, int64_t timeout_ns, async_op)
cdef object broadcast(Engine e, x, int root, int64_t timeout_ns, async_op)
cdef object all_gather(Engine e, x, out, counts, int64_t timeout_ns, async_op)
cdef object gather(Engine e, x, out, int root, counts, int64_t timeout_ns, async_op)
cdef object scatter(Engine e, x, out, int root, counts, int64_t timeout_ns, async_op)
cdef object all_to_all(Engine e, x, out, counts, out_counts, int64_t timeout_ns, async_op)
cdef object barrier(Engine e, int64_t timeout_ns, async_op)

cdef int number_of(op, int dtype) except -1
cdef reduce_kernel kernel_for(int op, array_t *x) except NULL
cdef bint is_root(Engine e, int root) except -1
