"""Collectives in which ranks have different numbers of rows.

In all of them but all-to-all, every rank passes the counts of all ranks. So they are an eager exchange or a plan like
any other collective. The signature contains a digest of the counts; ranks with different counts get a mismatch. In an
all-to-all each rank knows only the counts that it sends (and maybe those that it expects). So the ranks first exchange
their counts, 8 * (2 * size + 1) bytes of each.

A *row* is one index of the first axis. A *block* is the rows of one rank.
"""

import operator
from itertools import accumulate

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from shmring.arrays.array_view cimport array_t, copy_back, source_array, target_array
from shmring.arrays.outputs cimport check_overlap, empty_like_array, shape_of
from shmring.base.heap cimport Heap
from shmring.collective.local cimport LocalCall, LocalExecutor, follow_plan, payload_of, request_t, run_request
from shmring.engine.engine cimport Engine
from shmring._c.layout cimport SHMRING_EAGER_NBYTES
from shmring.collective.call cimport Call, dispatch
from shmring.engine.call cimport Executor, Prepared
from shmring.engine.compiled_plan cimport Program
from shmring.kernel.reduce cimport find_kernel, reduce_kernel
from shmring.engine.kinds cimport KIND_ALL_GATHER, KIND_ALL_TO_ALL, KIND_GATHER, KIND_REDUCE_SCATTER, KIND_SCATTER
from shmring.engine.signature cimport BY_COUNTS, NO_OP, NO_ROOT, pack_signature
from shmring.engine.eager cimport eager_t, open_eager, part_t

from shmring.dtypes import DTYPES, OPS, op_code


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef tuple checked(counts, int size, str name):
    """``counts`` as a tuple with the number of rows of each rank."""
    try:
        numbers = tuple([operator.index(n) for n in counts])
    except TypeError:
        raise TypeError(f"{name}={counts!r}: must be a sequence of integers, one per rank") from None
    if len(numbers) != size:
        raise ValueError(f"{name}={counts!r}: {len(numbers)} numbers for {size} ranks")
    if min(numbers) < 0 or sum(numbers) >= 1 << 62:
        raise ValueError(f"{name}={counts!r}: must be numbers of rows, from 0 up")
    return numbers


cdef tuple rows_of(x, str name, rows):
    """The shape of one row of ``x``, which must have ``rows`` rows."""
    shape = shape_of(x)
    if not shape:
        raise ValueError(f"{name} has no dimensions; its first one counts the rows")
    if shape[0] != rows:
        raise ValueError(f"{name} has {shape[0]} rows; the counts require {rows}")
    return shape[1:]


cdef int check_out_count(array_t *x, array_t *out, count) except -1:
    if out.dtype != x.dtype:
        raise TypeError(f"out has dtype {DTYPES[out.dtype].name}, x has {DTYPES[x.dtype].name}; they must be equal")
    if out.count != count:
        raise ValueError(f"out has {out.count} elements; the counts require {count}")
    return 0


cdef object volume(tuple row):
    """Elements of a row; a Python number, as it may exceed 64 bits."""
    elements = 1
    for extent in row:
        elements *= extent
    return elements


# ---- blocks ----------------------------------------------------------------------------------------------------------

cdef uint64_t mixed(uint64_t digest, uint64_t number) noexcept:
    digest = (digest ^ number) * <uint64_t> 0x9e3779b97f4a7c15
    return digest ^ digest >> 29


cdef class BlockLayout:
    """The blocks of all ranks, one after the other in one array."""

    cdef tuple sizes           # bytes
    cdef list places           # bytes; one more: the end
    cdef object count          # elements in all
    cdef object nbytes
    cdef uint64_t digest       # of what ranks must agree about: 36 bits

    def __cinit__(self, tuple counts, tuple row, int itemsize):
        cdef object elements = volume(row)
        self.count = sum(counts) * elements
        self.sizes = tuple([n * elements * itemsize for n in counts])
        self.places = [0, *accumulate(self.sizes)]
        self.nbytes = sum(self.sizes)
        self.digest = mixed(1, elements)
        for n in counts:
            self.digest = mixed(self.digest, n)
        self.digest >>= 28


cdef inline uint64_t sign(int kind, int op, array_t *x, int root, uint64_t digest) noexcept:
    return pack_signature(kind | BY_COUNTS, op, x.dtype, root, digest)


# ---- calls -----------------------------------------------------------------------------------------------------------

cdef class RowsCall(LocalCall):
    """A collective with counts, and the memory that its eager request points to."""

    cdef Heap memory

    def __cinit__(self):
        self.memory = Heap()


cdef RowsCall new_request(Engine e, int64_t timeout_ns):
    cdef RowsCall request = RowsCall.__new__(RowsCall)
    request.engine, request.timeout_ns = e, timeout_ns
    return request


cdef object finish(Call call, Executor executor, Prepared prepared, held, kept, result, async_op):
    call.executor, call.prepared = executor, prepared
    call.held, call.kept, call.result = held, kept, result
    return dispatch(call, async_op)


# ---- gather, all_gather ----------------------------------------------------------------------------------------------

cdef object all_gather_rows(Executor executor, x, out, counts, int64_t timeout_ns, async_op):
    return collect(executor, KIND_ALL_GATHER, "all_gather", x, out, counts, NO_ROOT, timeout_ns, async_op)


cdef object gather_rows(Executor executor, x, out, counts, int root, int64_t timeout_ns, async_op):
    return collect(executor, KIND_GATHER, "gather", x, out, counts, root, timeout_ns, async_op)


cdef object collect(Executor executor, int kind, str name, x, out, counts, int root, int64_t timeout_ns, async_op):
    cdef Engine e = (<LocalExecutor?> executor).local
    cdef array_t a, b
    cdef BlockLayout layout
    cdef RowsCall call
    cdef eager_t *t
    cdef part_t *parts
    cdef int rank = e.c.group.rank, size = e.c.group.size, j
    cdef bint receives = root == NO_ROOT or root == rank
    cdef tuple numbers = checked(counts, size, "counts")
    cdef tuple row = rows_of(x, "x", numbers[rank])
    cdef uint64_t signature
    result = kept = None
    held = source_array(x, &a)
    b = a
    layout = BlockLayout(numbers, row, a.itemsize)
    if receives:
        result = empty_like_array(x, (sum(numbers), *row)) if out is None else out
        kept = target_array(result, &b)
        check_out_count(&a, &b, layout.count)
        check_overlap(&a, &b, layout.places[rank])
    signature = sign(kind, NO_OP, &a, root, layout.digest)
    call = new_request(e, timeout_ns)
    if max(layout.sizes) > e.eager_limit:
        call.program = follow_plan(e, name, layout.sizes, signature, &a, &b, root, NULL, &call.request)
        return finish(Call.__new__(Call), executor, call, held, kept, result, async_op)
    t = &call.request.eager
    open_eager(t, signature, payload_of(&a), a.nbytes)
    if receives:
        parts = <part_t *> call.memory.allocate(size, sizeof(part_t))
        for j in range(size):
            parts[j].nbytes, parts[j].place = layout.sizes[j], layout.places[j]
        t.last, t.parts, t.out = size, parts, <char *> b.data
    return finish(Call.__new__(Call), executor, call, held, kept, result, async_op)


# ---- scatter ---------------------------------------------------------------------------------------------------------

cdef object scatter_rows(Executor executor, x, out, counts, int root, int64_t timeout_ns, async_op):
    cdef Engine e = (<LocalExecutor?> executor).local
    cdef array_t a, b
    cdef BlockLayout layout
    cdef RowsCall call
    cdef eager_t *t
    cdef int rank = e.c.group.rank
    cdef tuple numbers = checked(counts, e.c.group.size, "counts")
    cdef tuple row
    cdef uint64_t signature
    held = None
    if rank == root:
        row = rows_of(x, "x", sum(numbers))
        held = source_array(x, &a)
        result = empty_like_array(x, (numbers[rank], *row)) if out is None else out
        kept = target_array(result, &b)
        layout = BlockLayout(numbers, row, a.itemsize)
        check_out_count(&a, &b, layout.sizes[rank] // a.itemsize)
        check_overlap(&b, &a, layout.places[rank])
    elif out is None:
        raise ValueError(f"rank {rank} is not the root of this scatter: pass out=, an array for its "
                         f"{numbers[rank]} rows")
    else:
        row = rows_of(out, "out", numbers[rank])
        result = out
        kept = target_array(out, &b)
        a = b
        layout = BlockLayout(numbers, row, a.itemsize)
    signature = sign(KIND_SCATTER, NO_OP, &a, root, layout.digest)
    call = new_request(e, timeout_ns)
    if layout.nbytes > e.eager_limit:
        call.program = follow_plan(e, "scatter", layout.sizes, signature, &a, &b, root, NULL, &call.request)
        return finish(Call.__new__(Call), executor, call, held, kept, result, async_op)
    t = &call.request.eager
    open_eager(t, signature, payload_of(&a) if rank == root else NULL, a.nbytes)
    t.first, t.last = root, root + 1
    t.offset, t.part_nbytes, t.out = layout.places[rank], b.nbytes, <char *> b.data
    return finish(Call.__new__(Call), executor, call, held, kept, result, async_op)


# ---- reduce_scatter --------------------------------------------------------------------------------------------------

cdef object reduce_scatter_rows(Executor executor, x, out, counts, op, int64_t timeout_ns, async_op):
    cdef Engine e = (<LocalExecutor?> executor).local
    cdef array_t a, b
    cdef BlockLayout layout
    cdef RowsCall call
    cdef eager_t *t
    cdef int rank = e.c.group.rank, size = e.c.group.size
    cdef tuple numbers = checked(counts, size, "counts")
    cdef tuple row = rows_of(x, "x", sum(numbers))
    cdef reduce_kernel kernel
    cdef uint64_t signature
    cdef int code
    if callable(op):
        raise TypeError("a callable op cannot reduce with counts: pass an op by name, or no counts")
    code = op_code(op)
    held = source_array(x, &a)
    result = empty_like_array(x, (numbers[rank], *row)) if out is None else out
    kept = target_array(result, &b)
    layout = BlockLayout(numbers, row, a.itemsize)
    check_out_count(&a, &b, layout.sizes[rank] // a.itemsize)
    check_overlap(&b, &a, layout.places[rank])
    kernel = find_kernel(code, a.dtype)
    if kernel == NULL:
        raise TypeError(f"op {OPS[code]!r} is not defined on {DTYPES[a.dtype].name}")
    signature = sign(KIND_REDUCE_SCATTER, code, &a, NO_ROOT, layout.digest)
    call = new_request(e, timeout_ns)
    if layout.nbytes > e.eager_limit:
        call.program = follow_plan(e, "reduce_scatter", layout.sizes, signature, &a, &b, NO_ROOT, kernel, &call.request)
        return finish(Call.__new__(Call), executor, call, held, kept, result, async_op)
    t = &call.request.eager
    open_eager(t, signature, payload_of(&a), a.nbytes)
    t.last, t.offset, t.part_nbytes = size, layout.places[rank], b.nbytes
    t.kernel, t.count, t.out = kernel, b.count, <char *> b.data
    return finish(Call.__new__(Call), executor, call, held, kept, result, async_op)


# ---- all_to_all ------------------------------------------------------------------------------------------------------

cdef object all_to_all_rows(Executor executor, x, out, counts, out_counts, int64_t timeout_ns, async_op):
    cdef array_t a, b
    cdef SwapCall call
    cdef int size = executor.size
    cdef tuple sent = checked(counts, size, "counts")
    cdef tuple got = None if out_counts is None else checked(out_counts, size, "out_counts")
    cdef tuple row = rows_of(x, "x", sum(sent))
    cdef object room = -1      # rows of the output; -1: as many as are sent here
    held = source_array(x, &a)
    result, kept = out, None
    if got is not None:
        room = sum(got)
        result = empty_like_array(x, (room, *row)) if out is None else out
    elif out is not None:
        room = (shape_of(out) or (0,))[0]
    b = a
    if result is not None:
        kept = target_array(result, &b)
        check_out_count(&a, &b, room * volume(row))
        check_overlap(&a, &b, 0)
        if a.nbytes and a.data == b.data and got != sent:
            raise ValueError("in place, a rank receives from each peer as many rows as it sends there: "
                             "pass out_counts equal to counts")
    call = SwapCall.__new__(SwapCall)
    call.request = new_request((<LocalExecutor?> executor).local, timeout_ns)
    call.x, call.out, call.like, call.row = a, b, x, row
    call.prepare_counts((*sent, *(got or (-1,) * size), room))
    return finish(call, executor, call.request, held, kept, result, async_op)


cdef class SwapCall(Call):
    """An all-to-all with counts: its request exchanges the counts; a second request, made from them, swaps the rows."""

    cdef RowsCall request
    cdef array_t x
    cdef array_t out
    cdef object like             # the array that new outputs are like
    cdef tuple row
    cdef int64_t *counts         # of each rank: rows to each, rows expected from each or -1, rows of its output or -1

    cdef int prepare_counts(self, tuple numbers) except -1:
        cdef array_t mine, whole
        cdef Engine e = self.request.engine
        cdef int size = e.c.group.size, n = 2 * size + 1, i
        cdef int64_t *own = <int64_t *> self.request.memory.allocate(n, sizeof(int64_t))
        cdef uint64_t signature = sign(KIND_ALL_TO_ALL, NO_OP, &self.x, NO_ROOT, mixed(1, volume(self.row)) >> 28)
        cdef eager_t *t = &self.request.request.eager
        self.counts = <int64_t *> self.request.memory.allocate(n * size, sizeof(int64_t))
        for i in range(n):
            own[i] = numbers[i]
        memset(&mine, 0, sizeof(array_t))
        mine.data, mine.count, mine.nbytes, mine.itemsize = own, n, n * sizeof(int64_t), sizeof(int64_t)
        whole = mine
        whole.data, whole.nbytes = self.counts, mine.nbytes * size
        if mine.nbytes > SHMRING_EAGER_NBYTES:
            self.request.program = follow_plan(e, "all_gather", mine.nbytes, signature, &mine, &whole, NO_ROOT, NULL,
                                       &self.request.request)
        else:
            open_eager(t, signature, payload_of(&mine), mine.nbytes)
            t.last, t.part_nbytes, t.stride, t.out = size, mine.nbytes, mine.nbytes, <char *> self.counts
        return 0

    cdef object run(self):
        cdef array_t out = self.out
        cdef int rank = self.request.engine.c.group.rank
        cdef request_t swap
        cdef Program program
        cdef Heap memory = Heap()      # that the second request points to
        result, kept = self.result, self.kept
        self.request.engine.enter()
        try:
            run_request(self.request.engine, self.request.program, &self.request.request, self.request.timeout_ns)
            matrix = self.agree()
            try:
                if result is None:
                    result = empty_like_array(self.like, (sum([line[rank] for line in matrix]), *self.row))
                    kept = target_array(result, &out)
                program = self.prepare_swap(matrix, &out, &swap, memory)
            except BaseException as error:      # the others already wait for this rank in the swap
                self.request.engine.abort(f"{type(error).__name__}: {error}")
                raise
            run_request(self.request.engine, program, &swap, self.request.timeout_ns)
        finally:
            self.request.engine.leave()
        copy_back(kept)
        return result

    cdef tuple agree(self):
        """The rows from each rank (outer) to each. All ranks see the same counts, so all find the same mismatch."""
        cdef int size = self.request.engine.c.group.size, n = 2 * size + 1, i, j
        cdef int64_t *counts = self.counts
        cdef Engine e = self.request.engine
        cdef uint64_t signature = self.request.signature()
        matrix = tuple([tuple([counts[j * n + i] for i in range(size)]) for j in range(size)])
        for i in range(size):
            for j in range(size):
                if 0 <= counts[i * n + size + j] != matrix[j][i]:
                    e.disagree(j, signature, f"rank {j} sends {matrix[j][i]} rows to rank {i}, "
                               f"which expects {counts[i * n + size + j]}")
            sent = sum([line[i] for line in matrix])
            if 0 <= counts[i * n + n - 1] != sent:
                e.disagree(i, signature, f"rank {i} has room for {counts[i * n + n - 1]} rows, and "
                           f"the ranks send it {sent}")
        return matrix

    cdef Program prepare_swap(self, tuple matrix, array_t *out, request_t *swap, Heap memory):
        """The request of an all-to-all of blocks whose sizes all ranks know."""
        cdef Engine e = self.request.engine
        cdef eager_t *t = &swap.eager
        cdef part_t *parts
        cdef int rank = e.c.group.rank, size = e.c.group.size, j
        cdef size_t place = 0
        cdef uint64_t digest = mixed(2, volume(self.row))
        width = volume(self.row) * self.x.itemsize
        sizes = tuple([tuple([n * width for n in line]) for line in matrix])
        for line in matrix:
            for n in line:
                digest = mixed(digest, n)
        signature = sign(KIND_ALL_TO_ALL, NO_OP, &self.x, NO_ROOT, digest >> 28)
        if max([sum(line) for line in sizes]) > e.eager_limit:
            return follow_plan(e, "all_to_all", sizes, signature, &self.x, out, NO_ROOT, NULL, swap)
        parts = <part_t *> memory.allocate(size, sizeof(part_t))
        for j in range(size):
            parts[j].offset, parts[j].nbytes, parts[j].place = sum(sizes[j][:rank]), sizes[j][rank], place
            place += parts[j].nbytes
        open_eager(t, signature, payload_of(&self.x), self.x.nbytes)
        t.last, t.parts, t.out = size, parts, <char *> out.data
        return None
