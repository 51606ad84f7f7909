"""The collective calls on arrays: the arguments are checked, then the engine is entered, makes the call, and is left.

Nothing is sent before all arguments have passed, so a bad argument leaves the communicator as it was. With ``async_op``
the call is prepared, to be made later.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

from shmring.arrays.array_view cimport array_t, copy_back, source_array, target_array
from shmring.arrays.outputs cimport check_overlap, empty_like_array, shape_of
from shmring.collective.persistent cimport Prepared, dispatch, prepare
from shmring.collective.schedule cimport prepare_request, request_t, run_request
from shmring.collective.user_ops cimport number_of_callable, prepare_user_op
from shmring.collective.varying cimport (all_gather_rows, all_to_all_rows, gather_rows, reduce_scatter_rows,
                                         scatter_rows)
from shmring.engine.compiled_plan cimport Program
from shmring.engine.engine cimport Engine
from shmring.engine.signature cimport (KIND_ALL_GATHER, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, KIND_BARRIER, KIND_BROADCAST,
                                       KIND_EXSCAN, KIND_GATHER, KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_SCAN,
                                       KIND_SCATTER, NO_OP, NO_ROOT)
from shmring.kernel.reduce cimport find_kernel, reduce_kernel

from shmring.dtypes import DTYPES, OPS, op_code


cdef object SUM = "sum"      # interned, as the default of every method is

cdef enum:
    REDUCTIONS = (1 << KIND_ALL_REDUCE | 1 << KIND_REDUCE | 1 << KIND_REDUCE_SCATTER | 1 << KIND_SCAN
                  | 1 << KIND_EXSCAN)


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef int number_of(op, int dtype) except -1:
    """The kernels' number of ``op``; NO_OP for a callable that no kernel implements."""
    if op is SUM:
        return 0
    if callable(op):
        return number_of_callable(op, dtype)
    return op_code(op)


cdef reduce_kernel kernel_for(int op, array_t *x) except NULL:
    cdef reduce_kernel kernel = find_kernel(op, x.dtype)
    if kernel == NULL:
        raise TypeError(f"op {OPS[op]!r} is not defined on {DTYPES[x.dtype].name}")
    return kernel


cdef inline int check_out(array_t *x, array_t *out, size_t times, size_t parts) except -1:
    """Raise unless ``out`` has ``times / parts`` as many elements as ``x``, and its dtype."""
    if out.dtype == x.dtype and out.count * parts == x.count * times:
        return 0
    return refuse_out(x, out, times, parts)


cdef int refuse_out(array_t *x, array_t *out, size_t times, size_t parts) except -1:
    """Raise the error of an ``out`` that `check_out` does not accept."""
    if out.dtype != x.dtype:
        raise TypeError(f"out has dtype {DTYPES[out.dtype].name}, x has {DTYPES[x.dtype].name}; they must be equal")
    raise ValueError(f"out has {out.count} elements; for x with {x.count} it must have {x.count * times // parts}")


cdef bint is_root(Engine e, int root) except -1:
    """Whether this rank is the root; raises if no rank is."""
    if not 0 <= root < e.c.group.size:
        raise ValueError(f"root={root}: must be a rank, from 0 to {e.c.group.size - 1}")
    return root == e.c.group.rank


cdef tuple block_shape(Engine e, x):
    """The shape of ``x[i]``, for an ``x`` with one block per rank."""
    cdef tuple shape = shape_of(x)
    if not shape or shape[0] != e.c.group.size:
        raise ValueError(f"x has shape {shape}; its first dimension must be the number of ranks, {e.c.group.size}")
    return shape[1:]


# ---- any collective --------------------------------------------------------------------------------------------------

cdef object perform(Engine e, int kind, array_t *x, array_t *out, int root, op, int64_t timeout_ns, held, kept, result,
                    async_op):
    """Make the call, whose arguments have passed all checks; with ``async_op``, prepare it for later."""
    cdef request_t request
    cdef Program program
    cdef int code = NO_OP
    cdef reduce_kernel kernel = NULL
    if REDUCTIONS >> kind & 1:
        code = number_of(op, x.dtype)
        if code == NO_OP:
            return dispatch(prepare_user_op(e, kind, x, out, root, op, timeout_ns, held, kept, result), async_op)
        kernel = kernel_for(code, x)
    if async_op is not False:
        return dispatch(prepare(Prepared.__new__(Prepared), e, kind, x, out, root, code, kernel, timeout_ns, held, kept,
                                result), async_op)
    e.enter()
    try:
        program = prepare_request(e, kind, x, out, root, code, kernel, &request)
        run_request(e, program, &request, timeout_ns)
    finally:
        e.leave()
    copy_back(kept)
    return result


# ---- reductions ------------------------------------------------------------------------------------------------------

cdef object combine(Engine e, int kind, x, out, op, int64_t timeout_ns, async_op):
    """A reduction whose input and output are of one size on every rank: all_reduce, scan, exscan."""
    cdef array_t a, b
    result = x if out is None else out
    held = None
    if out is None:
        kept = target_array(x, &a)
        b = a
    else:
        held = source_array(x, &a)
        kept = target_array(out, &b)
        check_out(&a, &b, 1, 1)
        check_overlap(&a, &b, 0)
    return perform(e, kind, &a, &b, NO_ROOT, op, timeout_ns, held, kept, result, async_op)


cdef object reduce(Engine e, x, out, int root, op, int64_t timeout_ns, async_op):
    cdef array_t a, b
    cdef bint receives = is_root(e, root)
    result = kept = None
    held = source_array(x, &a)
    b = a
    if receives:
        result = x if out is None else out
        kept = target_array(result, &b)
        if out is None:
            a = b
        else:
            check_out(&a, &b, 1, 1)
            check_overlap(&a, &b, 0)
    return perform(e, KIND_REDUCE, &a, &b, root, op, timeout_ns, held, kept, result, async_op)


cdef object reduce_scatter(Engine e, x, out, counts, op, int64_t timeout_ns, async_op):
    cdef array_t a, b
    if counts is not None:
        return reduce_scatter_rows(e, x, out, counts, op, timeout_ns, async_op)
    held = source_array(x, &a)
    result = empty_like_array(x, block_shape(e, x)) if out is None else out
    kept = target_array(result, &b)
    check_out(&a, &b, 1, e.c.group.size)
    check_overlap(&b, &a, e.c.group.rank * b.nbytes)
    return perform(e, KIND_REDUCE_SCATTER, &a, &b, NO_ROOT, op, timeout_ns, held, kept, result, async_op)


# ---- data movement ---------------------------------------------------------------------------------------------------

cdef object broadcast(Engine e, x, int root, int64_t timeout_ns, async_op):
    cdef array_t a
    kept = source_array(x, &a) if is_root(e, root) else target_array(x, &a)
    return perform(e, KIND_BROADCAST, &a, &a, root, None, timeout_ns, None, kept, x, async_op)


cdef object all_gather(Engine e, x, out, counts, int64_t timeout_ns, async_op):
    if counts is not None:
        return all_gather_rows(e, x, out, counts, timeout_ns, async_op)
    return collect(e, KIND_ALL_GATHER, x, out, NO_ROOT, True, timeout_ns, async_op)


cdef object gather(Engine e, x, out, int root, counts, int64_t timeout_ns, async_op):
    cdef bint receives = is_root(e, root)
    if counts is not None:
        return gather_rows(e, x, out, counts, root, timeout_ns, async_op)
    return collect(e, KIND_GATHER, x, out, root, receives, timeout_ns, async_op)


cdef object collect(Engine e, int kind, x, out, int root, bint receives, int64_t timeout_ns, async_op):
    """Collect a block of every rank, on the ranks that receive."""
    cdef array_t a, b
    result = kept = None
    held = source_array(x, &a)
    b = a
    if receives:
        result = empty_like_array(x, (e.c.group.size, *shape_of(x))) if out is None else out
        kept = target_array(result, &b)
        check_out(&a, &b, e.c.group.size, 1)
        check_overlap(&a, &b, e.c.group.rank * a.nbytes)
    return perform(e, kind, &a, &b, root, None, timeout_ns, held, kept, result, async_op)


cdef object scatter(Engine e, x, out, int root, counts, int64_t timeout_ns, async_op):
    cdef array_t a, b
    cdef bint sends = is_root(e, root)
    if counts is not None:
        return scatter_rows(e, x, out, counts, root, timeout_ns, async_op)
    held = None
    if sends:
        held = source_array(x, &a)
        result = empty_like_array(x, block_shape(e, x)) if out is None else out
    elif out is None:
        raise ValueError(f"rank {e.c.group.rank} is not the root of this scatter: pass out=, an array of the shape of "
                         "one block")
    else:
        result = out
    kept = target_array(result, &b)
    if sends:
        check_out(&a, &b, 1, e.c.group.size)
        check_overlap(&b, &a, e.c.group.rank * b.nbytes)
    else:
        a = b
        a.count = b.count * e.c.group.size
        a.nbytes = b.nbytes * e.c.group.size
    return perform(e, KIND_SCATTER, &a, &b, root, None, timeout_ns, held, kept, result, async_op)


cdef object all_to_all(Engine e, x, out, counts, out_counts, int64_t timeout_ns, async_op):
    cdef array_t a, b
    if counts is not None:
        return all_to_all_rows(e, x, out, counts, out_counts, timeout_ns, async_op)
    if out_counts is not None:
        raise ValueError("out_counts requires counts, the rows to each rank")
    held = source_array(x, &a)
    block_shape(e, x)
    result = empty_like_array(x, shape_of(x)) if out is None else out
    kept = target_array(result, &b)
    check_out(&a, &b, 1, 1)
    check_overlap(&a, &b, 0)
    return perform(e, KIND_ALL_TO_ALL, &a, &b, NO_ROOT, None, timeout_ns, held, kept, result, async_op)


cdef object barrier(Engine e, int64_t timeout_ns, async_op):
    cdef array_t nothing
    memset(&nothing, 0, sizeof(nothing))
    return perform(e, KIND_BARRIER, &nothing, &nothing, NO_ROOT, None, timeout_ns, None, None, None, async_op)
