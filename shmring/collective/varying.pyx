"""Collectives in which ranks have different numbers of rows: the argument ``counts``.

In all of them but all-to-all, every rank passes the counts of all ranks. In an all-to-all each rank knows only the
counts that it sends (and maybe those that it expects). So the ranks first exchange their counts, 8 * (2 * size + 1)
bytes of each; then they make the call with the counts of all.

A *row* is one index of the first axis. A *block* is the rows of one rank.
"""

import operator

from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport copy_back, source_array, target_array
from shmring.arrays.outputs cimport empty_like_array, shape_of
from shmring.base.hashing cimport mix
from shmring.collective.call cimport Call, dispatch, prepare
from shmring.engine.call cimport (BAD_DTYPE, OVERLAPPING, UNEVEN, Prepared, check_call, is_overlapping,
                                  open_call, refuse_call, refuse_out)
from shmring.engine.kinds cimport KIND_ALL_GATHER, KIND_ALL_TO_ALL
from shmring.engine.signature cimport NO_OP, NO_ROOT, pack_digest

from shmring.dtypes import DTYPE_CODES

cdef int INT64 = DTYPE_CODES["int64"]


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef class Rows:
    """How many rows each rank has.

    Parameters
    ----------
    counts : sequence of int
    size : int
        Number of ranks.
    name : str
        Of the argument.
    """

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


# ---- all_to_all ------------------------------------------------------------------------------------------------------

cdef object all_to_all_rows(Executor executor, x, out, counts, out_counts, int64_t timeout_ns, async_op):
    cdef SwapCall call = SwapCall.__new__(SwapCall)
    cdef call_t *c = &call.swap
    cdef int size = executor.size
    cdef Rows sent = Rows(counts, size)
    cdef Rows got = None if out_counts is None else Rows(out_counts, size, "out_counts")
    cdef object room = -1      # rows of the output; -1: as many as are sent here
    open_call(c, KIND_ALL_TO_ALL, NO_ROOT, timeout_ns)
    call.like, call.row = x, row_of(x, "x", sent.total)
    held = source_array(x, &c.x)
    result, kept = out, None
    if got is not None:
        room = got.total
        result = empty_like_array(x, (room, *call.row)) if out is None else out
    elif out is not None:
        room = (shape_of(out) or (0,))[0]
    if result is not None:
        kept = target_array(result, &c.out)
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


cdef class SwapCall(Call):
    """An all-to-all with counts: what is prepared is the exchange of the counts; then the ranks swap their rows."""

    cdef call_t exchange
    cdef call_t swap             # its counts, and an output to be made, are found by the exchange
    cdef object like             # the array that new outputs are like
    cdef tuple row
    cdef Heap memory
    cdef int64_t *numbers        # of each rank: rows to each, rows expected from each or -1, rows of its output or -1

    cdef int set_numbers(self, int size, tuple own) except -1:
        """Have these numbers of this rank exchanged for those of all."""
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
        cdef int rank = self.executor.rank, size = self.executor.size, mistake
        result, kept = self.result, self.kept
        if result is None:
            result = empty_like_array(self.like, (sum([line[rank] for line in matrix]), *self.row))
            kept = target_array(result, &c.out)
        c.counts = elements_of(memory, [n for line in matrix for n in line], volume(self.row))
        mistake = check_call(&c, rank, size)
        if mistake:
            refuse_call(mistake, &c, rank, size)
        return self.executor.prepare(&c), result, kept
