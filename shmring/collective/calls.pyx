"""The collective calls on arrays: one record, `call_t`, is filled in and checked, and the executor makes the call.

Nothing is sent before all arguments have passed, so a bad argument leaves the communicator as it was. With ``async_op``
the call is prepared, to be made later.
"""

from cpython.complex cimport PyComplex_Check
from cpython.float cimport PyFloat_Check
from cpython.long cimport PyLong_Check
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport copy_back, source_array, target_array
from shmring.arrays.outputs cimport empty_like_array, shape_of
from shmring.collective.call cimport Call, dispatch, prepare
from shmring.collective.user_ops cimport number_of_callable, prepare_user_op
from shmring.collective.varying cimport Rows, all_to_all_rows
from shmring.engine.call cimport (BAD_ROOT, Executor, call_t, check_call, elements_of_x, open_call, refuse_call,
                                  without_arrays)
from shmring.engine.kinds cimport (KIND, KIND_ALL_GATHER, KIND_ALL_TO_ALL, KIND_BARRIER, KIND_BROADCAST, KIND_GATHER,
                                   KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_SCATTER)
from shmring.engine.signature cimport NO_OP, NO_ROOT

import numpy as np

from shmring.dtypes import op_code


cdef object SUM = "sum"      # interned, as the default of every method is
cdef object NDARRAY = np.ndarray


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef int number_of(op, int dtype) except -1:
    """The kernels' number of ``op``; NO_OP for a callable that no kernel implements."""
    if op is SUM:
        return 0
    if callable(op):
        return number_of_callable(op, dtype)
    return op_code(op)


cdef int check(Executor e, call_t *c) except -1:
    """Raise unless the arguments fit each other."""
    cdef int mistake = check_call(c, e.rank, e.size)
    return refuse_call(mistake, c, e.rank, e.size) if mistake else 0


cdef bint is_root(Executor e, int root) except -1:
    """Whether this rank is the root; raises if no rank is."""
    cdef call_t c
    if not 0 <= root < e.size:
        c.root = root
        refuse_call(BAD_ROOT, &c, e.rank, e.size)
    return root == e.rank


cdef tuple block_shape(Executor e, x, Rows rows):
    """The shape of this rank's block of ``x``."""
    cdef tuple shape
    if rows is not None:
        return rows.block_shape(e.rank)
    shape = shape_of(x)
    if not shape or shape[0] != e.size:
        raise ValueError(f"x has shape {shape}; its first dimension must be the number of ranks, {e.size}")
    return shape[1:]


cdef inline object as_array(x):
    """A number as a new array without dimensions; anything else as it is."""
    return x if type(x) is NDARRAY else number_as_array(x)


cdef object number_as_array(x):
    if PyFloat_Check(x) or PyLong_Check(x) or PyComplex_Check(x) or isinstance(x, np.generic):
        return np.asarray(x)
    return x


# ---- any collective --------------------------------------------------------------------------------------------------

cdef object perform(Executor e, call_t *c, op, held, kept, result, async_op):
    """Check the call, whose arrays are set, and make it; with ``async_op``, prepare it for later."""
    if KIND[c.kind].takes_op:
        c.op = number_of(op, c.x.dtype)
    check(e, c)
    if c.op == NO_OP and KIND[c.kind].takes_op:
        return dispatch(prepare_user_op(e, c, op, held, kept, result), async_op)
    if async_op is not False:
        return dispatch(prepare(Call.__new__(Call), e, c, held, kept, result), async_op)
    e.run(c)
    copy_back(kept)
    return result


# ---- reductions ------------------------------------------------------------------------------------------------------

cdef object combine(Executor e, int kind, x, out, op, int64_t timeout_ns, async_op):
    """A reduction whose input and output are of one size on every rank: all_reduce, scan, exscan."""
    cdef call_t c
    open_call(&c, kind, NO_ROOT, timeout_ns)
    held = None
    x = as_array(x)
    if out is None:
        out = x
        kept = target_array(x, &c.x)
        c.out = c.x
    else:
        held = source_array(x, &c.x)
        kept = target_array(out, &c.out)
    return perform(e, &c, op, held, kept, out, async_op)


cdef object reduce(Executor e, x, out, int root, op, int64_t timeout_ns, async_op):
    cdef call_t c
    cdef bint receives = is_root(e, root)
    open_call(&c, KIND_REDUCE, root, timeout_ns)
    result = kept = None
    x = as_array(x)
    held = source_array(x, &c.x)
    c.out = c.x
    if receives:
        result = x if out is None else out
        kept = target_array(result, &c.out)
        if out is None:
            c.x = c.out
    return perform(e, &c, op, held, kept, result, async_op)


cdef object reduce_scatter(Executor e, x, out, counts, op, int64_t timeout_ns, async_op):
    cdef call_t c
    cdef Rows rows = None
    open_call(&c, KIND_REDUCE_SCATTER, NO_ROOT, timeout_ns)
    if counts is not None:
        rows = Rows(counts, e.size)
        rows.count(&c, x, "x", rows.total)
    held = source_array(x, &c.x)
    result = empty_like_array(x, block_shape(e, x, rows)) if out is None else out
    kept = target_array(result, &c.out)
    return perform(e, &c, op, held, kept, result, async_op)


# ---- data movement ---------------------------------------------------------------------------------------------------

cdef object broadcast(Executor e, x, int root, int64_t timeout_ns, async_op):
    cdef call_t c
    cdef bint sends = is_root(e, root)
    open_call(&c, KIND_BROADCAST, root, timeout_ns)
    kept = source_array(x, &c.x) if sends else target_array(x, &c.x)
    c.out = c.x
    return perform(e, &c, None, None, kept, x, async_op)


cdef object all_gather(Executor e, x, out, counts, int64_t timeout_ns, async_op):
    return collect(e, KIND_ALL_GATHER, x, out, NO_ROOT, counts, True, timeout_ns, async_op)


cdef object gather(Executor e, x, out, int root, counts, int64_t timeout_ns, async_op):
    return collect(e, KIND_GATHER, x, out, root, counts, is_root(e, root), timeout_ns, async_op)


cdef object collect(Executor e, int kind, x, out, int root, counts, bint receives, int64_t timeout_ns, async_op):
    """Collect a block of every rank, on the ranks that receive."""
    cdef call_t c
    cdef Rows rows = None
    open_call(&c, kind, root, timeout_ns)
    if counts is not None:
        rows = Rows(counts, e.size)
        rows.count(&c, x, "x", rows.counts[e.rank])
    result = kept = None
    held = source_array(x, &c.x)
    c.out = c.x
    if receives:
        result = out
        if out is None:
            result = empty_like_array(x, (e.size, *shape_of(x)) if rows is None else rows.whole_shape())
        kept = target_array(result, &c.out)
    return perform(e, &c, None, held, kept, result, async_op)


cdef object scatter(Executor e, x, out, int root, counts, int64_t timeout_ns, async_op):
    cdef call_t c
    cdef bint sends = is_root(e, root)
    cdef Rows rows = None if counts is None else Rows(counts, e.size)
    open_call(&c, KIND_SCATTER, root, timeout_ns)
    if out is None and not sends:
        what = "of the shape of one block" if rows is None else f"for its {rows.counts[e.rank]} rows"
        raise ValueError(f"rank {e.rank} is not the root of this scatter: pass out=, an array {what}")
    held = None
    if sends:
        if rows is not None:
            rows.count(&c, x, "x", rows.total)
        held = source_array(x, &c.x)
        result = empty_like_array(x, block_shape(e, x, rows)) if out is None else out
    else:
        if rows is not None:
            rows.count(&c, out, "out", rows.counts[e.rank])
        result = out
    kept = target_array(result, &c.out)
    if not sends:
        c.x = c.out
        c.x.count = e.size * c.out.count if rows is None else elements_of_x(&c, root, e.size)
        c.x.nbytes = c.x.count * c.x.itemsize
    return perform(e, &c, None, held, kept, result, async_op)


cdef object all_to_all(Executor e, x, out, counts, out_counts, int64_t timeout_ns, async_op):
    cdef call_t c
    if counts is not None:
        return all_to_all_rows(e, x, out, counts, out_counts, timeout_ns, async_op)
    if out_counts is not None:
        raise ValueError("out_counts requires counts, the rows to each rank")
    open_call(&c, KIND_ALL_TO_ALL, NO_ROOT, timeout_ns)
    held = source_array(x, &c.x)
    block_shape(e, x, None)
    result = empty_like_array(x, shape_of(x)) if out is None else out
    kept = target_array(result, &c.out)
    return perform(e, &c, None, held, kept, result, async_op)


cdef object barrier(Executor e, int64_t timeout_ns, async_op):
    cdef call_t c
    open_call(&c, KIND_BARRIER, NO_ROOT, timeout_ns)
    without_arrays(&c)
    return perform(e, &c, None, None, None, None, async_op)
