"""The collective calls on arrays: one record, `call_t`, is filled in and checked, and the executor makes the call.

Nothing is sent before all arguments have passed, so a bad argument leaves the communicator as it was. With ``async_op``
the call is prepared, to be made later.

With ``counts`` the ranks have different numbers of *rows*; a row is one index of the first axis, and a *block* the rows
of one rank. Every rank passes the counts of all ranks, except in an all-to-all, where each rank knows only the counts
that it sends (and maybe those that it expects). There the ranks first exchange their counts, 8 * (2 * size + 1) bytes
of each; then they make the call with the counts of all.
"""

import operator

from cpython.complex cimport PyComplex_Check
from cpython.float cimport PyFloat_Check
from cpython.long cimport PyLong_Check
from libc.stdint cimport int64_t

from shmring.core.arrays.array_view cimport copy_back, source_array, target_array
from shmring.core.arrays.outputs cimport empty_like_array, shape_of
from shmring.core.base.hashing cimport mix
from shmring.core.base.heap cimport Heap
from shmring.collectives.calls.plan cimport Plan, dispatch, number_of_callable, prepare, prepare_user_op
from shmring.collectives.engine.call cimport (BAD_DTYPE, OVERLAPPING, UNEVEN, Executor, Prepared, call_t, elements_of_x,
                                  is_overlapping, open_call, refuse_call, refuse_out, without_arrays)
from shmring.collectives.engine.kinds cimport (
    KIND, KIND_ALL_GATHER, KIND_ALL_TO_ALL, KIND_BARRIER, KIND_BROADCAST, KIND_REDUCE, has_root, is_receiver, is_sender,
    nblocks, nblocks_in, shmring_kind,
)
from shmring.collectives.engine.signature cimport NO_OP, NO_ROOT, pack_digest

import numpy as np

from shmring.dtypes import DTYPE_CODES, op_code


cdef int INT64 = DTYPE_CODES["int64"]
cdef object SUM = "sum"      # interned, as the default of every method is
cdef object NDARRAY = np.ndarray


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef int number_of(op, int dtype) except -1:
    """The kernels' number of ``op``; NO_OP for a callable that no kernel implements."""
    if op is SUM:
        return 0
    return number_of_callable(op, dtype) if callable(op) else op_code(op)


cdef inline object as_array(x):
    """A number as a new array without dimensions; anything else as it is."""
    return x if type(x) is NDARRAY else number_as_array(x)


cdef object number_as_array(x):
    if PyFloat_Check(x) or PyLong_Check(x) or PyComplex_Check(x) or isinstance(x, np.generic):
        return np.asarray(x)
    return x


# ---- counts of rows --------------------------------------------------------------------------------------------------

cdef class Rows:
    """How many rows each rank has.

    Parameters
    ----------
    counts : sequence of int
    size : int
        Number of ranks.
    name : str
        The name of the argument.
    """

    cdef tuple counts            # by rank
    cdef object total
    cdef tuple row               # the shape of a row
    cdef Heap memory             # what the counts of `call_t` lie in

    def __cinit__(self, counts, int size, str name="counts"):
        try:
            self.counts = tuple([operator.index(n) for n in counts])
        except TypeError:
            raise TypeError(f"{name}={counts!r}: must be a sequence of integers, one per rank") from None
        self.total = sum(self.counts)
        if len(self.counts) != size:
            raise ValueError(f"{name}={counts!r}: {len(self.counts)} numbers for {size} ranks")
        if min(self.counts) < 0 or self.total >= 1 << 62:
            raise ValueError(f"{name}={counts!r}: must be numbers of rows, from 0 up")

    cdef int count(self, call_t *c, x, str name, rows) except -1:
        """Count elements in a call: ``x``, an array with so many rows, shows what a row is."""
        self.row = row_of(x, name, rows)
        self.memory = Heap()
        c.counts = elements_of(self.memory, self.counts, volume(self.row))
        return 0

    cdef tuple block_shape(self, int rank):
        """The shape of an array for the rows of a rank."""
        return (self.counts[rank], *self.row)

    cdef tuple whole_shape(self):
        """The shape of an array for the rows of all ranks."""
        return (self.total, *self.row)


cdef tuple row_of(x, str name, rows):
    """The shape of one row of ``x``, which must have so many rows."""
    shape = shape_of(x)
    if not shape:
        raise ValueError(f"{name} has no dimensions; its first one counts the rows")
    if shape[0] != rows:
        raise ValueError(f"{name} has {shape[0]} rows; the counts require {rows}")
    return shape[1:]


cdef object volume(tuple row):
    """Elements of a row; a Python number, as it may exceed 64 bits."""
    elements = 1
    for extent in row:
        elements *= extent
    return elements


cdef int64_t *elements_of(Heap memory, counts, width) except NULL:
    """Numbers of rows as numbers of elements, in that memory."""
    cdef int64_t *elements = <int64_t *> memory.allocate(len(counts), sizeof(int64_t))
    for i, n in enumerate(counts):
        elements[i] = n * width
    return elements


# ---- any collective --------------------------------------------------------------------------------------------------

cdef object perform(Executor e, call_t *c, op, held, kept, result, async_op):
    """Check the call, whose arrays are set, and make it; with ``async_op``, prepare it for later."""
    cdef bint reduces = KIND[c.kind].takes_op
    if reduces:
        c.op = number_of(op, c.x.dtype)
    check(e, c)
    if reduces and c.op == NO_OP:
        return dispatch(prepare_user_op(e, c, op, held, kept, result), async_op)
    if async_op is not False:
        return dispatch(prepare(Plan.__new__(Plan), e, c, held, kept, result), async_op)
    c.held, c.kept = <void *> held, <void *> kept
    e.run(c)
    copy_back(kept)
    return result


# ---- one array on each rank ------------------------------------------------------------------------------------------

cdef object combine(Executor e, int kind, x, out, op, int64_t timeout_ns, async_op):
    """A reduction whose input and output are of one size on every rank: all_reduce, scan, exscan."""
    cdef call_t c
    open_call(&c, kind, NO_ROOT, timeout_ns)
    held = None
    x = as_array(x)
    if out is None:
        out = x
        kept = target_array(x, &c.x, False)
        c.out = c.x
    else:
        held = source_array(x, &c.x, False)
        kept = target_array(out, &c.out, False)
    return perform(e, &c, op, held, kept, out, async_op)


cdef object reduce(Executor e, x, out, int root, op, int64_t timeout_ns, async_op):
    cdef call_t c
    cdef bint receives = is_root(e, root)
    open_call(&c, KIND_REDUCE, root, timeout_ns)
    result = kept = None
    x = as_array(x)
    held = source_array(x, &c.x, False)
    c.out = c.x
    if receives:
        result = x if out is None else out
        kept = target_array(result, &c.out, False)
        if out is None:
            c.x = c.out
    return perform(e, &c, op, held, kept, result, async_op)


cdef object broadcast(Executor e, x, int root, int64_t timeout_ns, async_op):
    cdef call_t c
    cdef bint sends = is_root(e, root)
    open_call(&c, KIND_BROADCAST, root, timeout_ns)
    kept = source_array(x, &c.x, True) if sends else target_array(x, &c.x, True)
    c.out = c.x
    return perform(e, &c, None, None, kept, x, async_op)


cdef object barrier(Executor e, int64_t timeout_ns, async_op):
    cdef call_t c
    open_call(&c, KIND_BARRIER, NO_ROOT, timeout_ns)
    without_arrays(&c)
    return perform(e, &c, None, None, None, None, async_op)


# ---- blocks of all ranks ---------------------------------------------------------------------------------------------

cdef object with_blocks(Executor e, int kind, x, out, int root, counts, op, int64_t timeout_ns, async_op):
    """A collective that moves or reduces whole arrays or blocks of them; of an all-to-all, the one without counts."""
    cdef call_t c
    cdef const shmring_kind *k = &KIND[kind]
    cdef Rows rows = None if counts is None else Rows(counts, e.size)
    cdef bint moves = not k.takes_op, sends = is_sender(kind, e.rank, root), receives = is_receiver(kind, e.rank, root)
    if has_root(kind):
        is_root(e, root)
    open_call(&c, kind, root, timeout_ns)
    if out is None and not sends:
        what = "of the shape of one block" if rows is None else f"for its {rows.counts[e.rank]} rows"
        raise ValueError(f"rank {e.rank} is not the root of this scatter: pass out=, an array {what}")
    if rows is not None and sends:
        rows.count(&c, x, "x", rows.total if k.blocks_in else rows.counts[e.rank])
    elif rows is not None:
        rows.count(&c, out, "out", rows.counts[e.rank])
    held = result = kept = None
    if sends:
        held = source_array(x, &c.x, moves)
        if k.blocks_in and k.blocks_out:
            check_blocks(nblocks_in(kind, e.size), shape_of(x))
    if receives:
        result = empty_like_array(x, result_shape(e, k, x, rows)) if out is None else out
        kept = target_array(result, &c.out, moves)
    else:
        c.out = c.x
    if not sends:
        c.x = c.out
        c.x.count = e.size * c.out.count if rows is None else elements_of_x(&c, root, e.size)
        c.x.nbytes = c.x.count * c.x.itemsize
    return perform(e, &c, op, held, kept, result, async_op)


cdef int check_blocks(int n, tuple shape) except -1:
    """Raise unless an ``x`` of this shape has n blocks."""
    if not shape or shape[0] != n:
        raise ValueError(f"x has shape {shape}; its first dimension must be the number of its blocks, {n}")
    return 0


cdef tuple result_shape(Executor e, const shmring_kind *k, x, Rows rows):
    """The shape of a new output."""
    cdef tuple shape
    if rows is not None:
        return rows.whole_shape() if k.blocks_out else rows.block_shape(e.rank)
    shape = shape_of(x)
    if not k.blocks_in:
        return (nblocks(k.blocks_out, e.size), *shape) if k.blocks_out else shape
    check_blocks(nblocks(k.blocks_in, e.size), shape)
    return shape if k.blocks_out else shape[1:]


cdef object all_to_all(Executor e, x, out, counts, out_counts, int64_t timeout_ns, async_op):
    if counts is not None:
        return all_to_all_rows(e, x, out, counts, out_counts, timeout_ns, async_op)
    if out_counts is not None:
        raise ValueError("out_counts requires counts, the rows to each rank")
    return with_blocks(e, KIND_ALL_TO_ALL, x, out, NO_ROOT, None, None, timeout_ns, async_op)


# ---- an all-to-all with counts ---------------------------------------------------------------------------------------

cdef object all_to_all_rows(Executor executor, x, out, counts, out_counts, int64_t timeout_ns, async_op):
    cdef SwapPlan call = SwapPlan.__new__(SwapPlan)
    cdef call_t *c = &call.swap
    cdef int size = executor.size
    cdef Rows sent = Rows(counts, size)
    cdef Rows got = None if out_counts is None else Rows(out_counts, size, "out_counts")
    cdef object room = -1      # rows of the output; -1: as many as are sent here
    open_call(c, KIND_ALL_TO_ALL, NO_ROOT, timeout_ns)
    call.like, call.row = x, row_of(x, "x", sent.total)
    held = source_array(x, &c.x, True)
    result, kept = out, None
    if got is not None:
        room = got.total
        result = empty_like_array(x, (room, *call.row)) if out is None else out
    elif out is not None:
        room = (shape_of(out) or (0,))[0]
    if result is not None:
        kept = target_array(result, &c.out, True)
        check_output(executor, c, room * volume(call.row), got is not None and got.counts == sent.counts)
    call.set_numbers(size, (*sent.counts, *((-1,) * size if got is None else got.counts), room))
    return dispatch(prepare(call, executor, &call.exchange, held, kept, result), async_op)


cdef int check_output(Executor executor, call_t *c, count, bint is_even) except -1:
    """Check what can be checked of ``out`` before the ranks know all counts."""
    if c.out.dtype != c.x.dtype:
        refuse_call(BAD_DTYPE, c, executor.rank, executor.size)
    if c.out.count != count:
        refuse_out(c, count)
    if is_overlapping(c, executor.rank):
        refuse_call(OVERLAPPING, c, executor.rank, executor.size)
    if c.x.nbytes and c.x.data == c.out.data and not is_even:
        refuse_call(UNEVEN, c, executor.rank, executor.size)
    return 0


cdef class SwapPlan(Plan):
    """An all-to-all with counts: what is prepared is the exchange of the counts; then the ranks swap their rows."""

    cdef call_t exchange
    cdef call_t swap             # its counts, and an output to be made, are found by the exchange
    cdef object like             # the array that new outputs are like
    cdef object made             # the new output of the call before, if any
    cdef tuple row
    cdef Heap memory
    cdef int64_t *numbers        # of each rank: rows to each, rows expected from each or -1, rows of its output or -1

    cdef int set_numbers(self, int size, tuple own) except -1:
        """Fill in this rank's numbers for the exchange with the numbers of all."""
        cdef call_t *c = &self.exchange
        self.memory = Heap()
        self.numbers = <int64_t *> self.memory.allocate(len(own) * size, sizeof(int64_t))
        open_call(c, KIND_ALL_GATHER, NO_ROOT, self.swap.timeout_ns)
        c.x.data, c.x.count, c.x.nbytes = elements_of(self.memory, own, 1), len(own), len(own) * sizeof(int64_t)
        c.x.dtype, c.x.itemsize = INT64, sizeof(int64_t)
        c.out = c.x
        c.out.data, c.out.count, c.out.nbytes = self.numbers, c.x.count * size, c.x.nbytes * size
        # A peer that calls an all_gather must get a mismatch, and so must a peer with other rows.
        c.signature = pack_digest(KIND_ALL_TO_ALL, NO_OP, self.swap.x.dtype, NO_ROOT, mix(1, volume(self.row)))
        return 0

    cdef object run(self):
        result, kept = self.result, self.kept
        self.executor.enter()
        try:
            self.prepared.run()
            matrix = self.agree()
            try:
                swap, result, kept = self.prepare_swap(matrix)
            except BaseException as error:      # the others already wait for this rank in the swap
                self.executor.engine.abort(f"{type(error).__name__}: {error}")
                raise
            (<Prepared> swap).run()
        finally:
            self.executor.leave()
        copy_back(kept)
        return result

    cdef list agree(self):
        """The rows from each rank to each, by sender. All ranks see the same numbers, so all find the same mismatch."""
        cdef int size = self.executor.size, i, j
        lines = [[self.numbers[j * (2 * size + 1) + i] for i in range(2 * size + 1)] for j in range(size)]
        for i, (*_, room) in enumerate(lines):
            for j in range(size):
                if 0 <= lines[i][size + j] != lines[j][i]:
                    self.disagree(j, f"rank {j} sends {lines[j][i]} rows to rank {i}, "
                                  f"which expects {lines[i][size + j]}")
            sent = sum([line[i] for line in lines])
            if 0 <= room != sent:
                self.disagree(i, f"rank {i} has room for {room} rows, and the ranks send it {sent}")
        return [line[:size] for line in lines]

    cdef int disagree(self, int about, str reason) except -1:
        self.executor.engine.disagree(about, self.prepared.signature, reason)
        return 0

    cdef tuple prepare_swap(self, list matrix):
        """The swap, its result, and the output that it is made from."""
        cdef call_t c = self.swap
        cdef Heap memory = Heap()
        cdef int rank = self.executor.rank
        result, kept = self.result, self.kept
        if result is None:
            rows = sum([line[rank] for line in matrix])
            if self.made is None or len(self.made) != rows:
                self.made = empty_like_array(self.like, (rows, *self.row))
            result = self.made
            kept = target_array(result, &c.out, True)
        c.counts = elements_of(memory, [n for line in matrix for n in line], volume(self.row))
        check(self.executor, &c)
        c.held, c.kept = <void *> self, <void *> kept
        return self.executor.prepare(&c), result, kept
