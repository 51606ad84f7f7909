"""Collectives in which ranks have different numbers of rows.

All but all-to-all are told the rows of every rank on every rank, so they are a talk or a plan like any other; a digest of
the counts is in the signature, and ranks that were told different ones disagree. In an all-to-all each rank knows only
what it sends itself (and perhaps what it expects), so ranks first tell each other, in a talk of 8 * (2 * size + 1) bytes.

A *row* is one index of the first axis. A *block* is the rows of one rank.
"""

import operator
from itertools import accumulate

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from shmring.arrays cimport (array_t, check_overlap, empty_like_array, give_back, shape_of, source_array,
                             target_array)
from shmring.blocks cimport allocate
from shmring.collectives cimport follow_plan
from shmring.engine cimport Engine
from shmring.layout cimport SHMRING_WHISPER_NBYTES
from shmring.reduce cimport find_kernel, reduce_kernel
from shmring.signature cimport (BY_COUNTS, KIND_ALL_GATHER, KIND_ALL_TO_ALL, KIND_GATHER, KIND_REDUCE_SCATTER,
                                KIND_SCATTER, NO_OP, NO_ROOT, pack_signature)
from shmring.talk cimport part_t, talk_t

from shmring.dtypes import DTYPES, OPS


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef tuple checked(counts, int size, str name):
    """``counts`` as a tuple of one number of rows a rank."""
    try:
        numbers = tuple([operator.index(n) for n in counts])
    except TypeError:
        raise TypeError(f"{name}={counts!r}: must be a sequence of integers, one for each rank") from None
    if len(numbers) != size:
        raise ValueError(f"{name}={counts!r}: {len(numbers)} numbers for {size} ranks")
    if min(numbers) < 0 or sum(numbers) >= 1 << 62:
        raise ValueError(f"{name}={counts!r}: must be numbers of rows, from 0 up")
    return numbers


cdef tuple rows_of(x, str name, rows):
    """The shape of one row of ``x``, which must have so many."""
    shape = shape_of(x)
    if not shape:
        raise ValueError(f"{name} has no dimensions; its first one counts the rows")
    if shape[0] != rows:
        raise ValueError(f"{name} has {shape[0]} rows; by the counts it must have {rows}")
    return shape[1:]


cdef int check_out(array_t *x, array_t *out, count) except -1:
    if out.dtype != x.dtype:
        raise TypeError(f"out has dtype {DTYPES[out.dtype].name}, x has {DTYPES[x.dtype].name}; they must be equal")
    if out.count != count:
        raise ValueError(f"out has {out.count} elements; by the counts it must have {count}")
    return 0


cdef int check_root(Engine e, int root) except -1:
    if not 0 <= root < e.c.circle.size:
        raise ValueError(f"root={root}: must be a rank, from 0 to {e.c.circle.size - 1}")
    return 0


cdef reduce_kernel kernel_for(int op, array_t *x) except NULL:
    cdef reduce_kernel kernel = find_kernel(op, x.dtype)
    if kernel == NULL:
        raise TypeError(f"op {OPS[op]!r} is not defined on {DTYPES[x.dtype].name}")
    return kernel


cdef object volume(tuple row):
    """Elements of a row; a Python number, as it may be anything."""
    elements = 1
    for extent in row:
        elements *= extent
    return elements


# ---- blocks ----------------------------------------------------------------------------------------------------------

cdef uint64_t mixed(uint64_t digest, uint64_t number) noexcept:
    digest = (digest ^ number) * <uint64_t> 0x9e3779b97f4a7c15
    return digest ^ digest >> 29


cdef class Layout:
    """The blocks of all ranks, one after the other in one array."""

    cdef tuple sizes           # bytes
    cdef list places           # bytes; one more: the end
    cdef object count          # elements in all
    cdef object nbytes
    cdef uint64_t digest       # of all that ranks must agree about: 36 bits

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


cdef inline void open_talk(talk_t *t, uint64_t signature, array_t *x, bint speaks) noexcept:
    memset(t, 0, sizeof(talk_t))
    t.signature = signature
    if speaks:
        t.words = <char *> x.data if x.data != NULL else <char *> b""
        t.nbytes = x.nbytes


# ---- gather, all_gather ----------------------------------------------------------------------------------------------

cdef object all_gather_rows(Engine e, x, out, counts, int64_t timeout_ns):
    return collect(e, KIND_ALL_GATHER, "all_gather", x, out, counts, NO_ROOT, timeout_ns)


cdef object gather_rows(Engine e, x, out, counts, int root, int64_t timeout_ns):
    check_root(e, root)
    return collect(e, KIND_GATHER, "gather", x, out, counts, root, timeout_ns)


cdef object collect(Engine e, int kind, str name, x, out, counts, int root, int64_t timeout_ns):
    cdef array_t a, b
    cdef talk_t t
    cdef Layout layout
    cdef part_t *parts
    cdef list memory = []
    cdef int rank = e.c.circle.rank, size = e.c.circle.size, j
    cdef bint hears = root == NO_ROOT or root == rank
    cdef tuple numbers = checked(counts, size, "counts")
    cdef tuple row = rows_of(x, "x", numbers[rank])
    cdef uint64_t signature
    result = kept = None
    _held = source_array(x, &a)
    b = a
    layout = Layout(numbers, row, a.itemsize)
    if hears:
        result = empty_like_array(x, (sum(numbers), *row)) if out is None else out
        kept = target_array(result, &b)
        check_out(&a, &b, layout.count)
        check_overlap(&a, &b, layout.places[rank])
    signature = sign(kind, NO_OP, &a, root, layout.digest)
    open_talk(&t, signature, &a, True)
    if hears:
        parts = <part_t *> allocate(memory, size, sizeof(part_t))
        for j in range(size):
            parts[j].nbytes, parts[j].place = layout.sizes[j], layout.places[j]
        t.last, t.parts, t.out = size, parts, <char *> b.data
    e.enter()
    try:
        if max(layout.sizes) > e.whisper_limit:
            follow_plan(e, name, layout.sizes, signature, &a, &b, root, NULL, timeout_ns)
        else:
            e.talk(&t, timeout_ns)
    finally:
        e.leave()
    if hears:
        give_back(kept)
    return result


# ---- scatter ---------------------------------------------------------------------------------------------------------

cdef object scatter_rows(Engine e, x, out, counts, int root, int64_t timeout_ns):
    cdef array_t a, b
    cdef talk_t t
    cdef Layout layout
    cdef int rank = e.c.circle.rank
    cdef tuple numbers = checked(counts, e.c.circle.size, "counts")
    cdef tuple row
    cdef uint64_t signature
    check_root(e, root)
    _held = None
    if rank == root:
        row = rows_of(x, "x", sum(numbers))
        _held = source_array(x, &a)
        result = empty_like_array(x, (numbers[rank], *row)) if out is None else out
        kept = target_array(result, &b)
        layout = Layout(numbers, row, a.itemsize)
        check_out(&a, &b, layout.sizes[rank] // a.itemsize)
        check_overlap(&b, &a, layout.places[rank])
    elif out is None:
        raise ValueError(f"rank {rank} is not the root of this scatter: pass out=, an array for its {numbers[rank]} rows")
    else:
        row = rows_of(out, "out", numbers[rank])
        result = out
        kept = target_array(out, &b)
        a = b
        layout = Layout(numbers, row, a.itemsize)
    signature = sign(KIND_SCATTER, NO_OP, &a, root, layout.digest)
    open_talk(&t, signature, &a, rank == root)
    t.first, t.last = root, root + 1
    t.offset, t.part_nbytes, t.out = layout.places[rank], b.nbytes, <char *> b.data
    e.enter()
    try:
        if layout.nbytes > e.whisper_limit:
            follow_plan(e, "scatter", layout.sizes, signature, &a, &b, root, NULL, timeout_ns)
        else:
            e.talk(&t, timeout_ns)
    finally:
        e.leave()
    give_back(kept)
    return result


# ---- reduce_scatter --------------------------------------------------------------------------------------------------

cdef object reduce_scatter_rows(Engine e, x, out, counts, int op, int64_t timeout_ns):
    cdef array_t a, b
    cdef talk_t t
    cdef Layout layout
    cdef int rank = e.c.circle.rank, size = e.c.circle.size
    cdef tuple numbers = checked(counts, size, "counts")
    cdef tuple row = rows_of(x, "x", sum(numbers))
    cdef reduce_kernel kernel
    cdef uint64_t signature
    _held = source_array(x, &a)
    result = empty_like_array(x, (numbers[rank], *row)) if out is None else out
    kept = target_array(result, &b)
    layout = Layout(numbers, row, a.itemsize)
    check_out(&a, &b, layout.sizes[rank] // a.itemsize)
    check_overlap(&b, &a, layout.places[rank])
    kernel = kernel_for(op, &a)
    signature = sign(KIND_REDUCE_SCATTER, op, &a, NO_ROOT, layout.digest)
    open_talk(&t, signature, &a, True)
    t.last, t.offset, t.part_nbytes = size, layout.places[rank], b.nbytes
    t.kernel, t.count, t.out = kernel, b.count, <char *> b.data
    e.enter()
    try:
        if layout.nbytes > e.whisper_limit:
            follow_plan(e, "reduce_scatter", layout.sizes, signature, &a, &b, NO_ROOT, kernel, timeout_ns)
        else:
            e.talk(&t, timeout_ns)
    finally:
        e.leave()
    give_back(kept)
    return result


# ---- all_to_all ------------------------------------------------------------------------------------------------------

cdef object all_to_all_rows(Engine e, x, out, counts, out_counts, int64_t timeout_ns):
    cdef array_t a, b
    cdef int rank = e.c.circle.rank, size = e.c.circle.size
    cdef tuple sent = checked(counts, size, "counts")
    cdef tuple got = None if out_counts is None else checked(out_counts, size, "out_counts")
    cdef tuple row = rows_of(x, "x", sum(sent))
    cdef object room = -1      # rows that the output has; -1: as many as come
    _held = source_array(x, &a)
    result, kept = out, None
    if got is not None:
        room = sum(got)
        result = empty_like_array(x, (room, *row)) if out is None else out
    elif out is not None:
        room = (shape_of(out) or (0,))[0]
    if result is not None:
        kept = target_array(result, &b)
        check_out(&a, &b, room * volume(row))
        check_overlap(&a, &b, 0)
        if a.nbytes and a.data == b.data and got != sent:
            raise ValueError("in place, a rank gets from each as many rows as it sends there: "
                             "pass out_counts equal to counts")
    e.enter()
    try:
        matrix = tell_counts(e, sent, got, room, &a, row, timeout_ns)
        if result is None:
            try:
                result = empty_like_array(x, (sum([line[rank] for line in matrix]), *row))
                kept = target_array(result, &b)
            except BaseException as error:      # the others, who know what this rank lacks, are on their way
                e.abort(f"{type(error).__name__}: {error}")
                raise
        exchange(e, matrix, &a, &b, row, timeout_ns)
    finally:
        e.leave()
    give_back(kept)
    return result


cdef tuple tell_counts(Engine e, tuple sent, tuple got, room, array_t *x, tuple row, int64_t timeout_ns):
    """The rows from each rank (outer) to each, after all ranks have told what they send and what they expect."""
    cdef array_t mine, all_of_them
    cdef talk_t t
    cdef list memory = []
    cdef int size = e.c.circle.size, i, j, n = 2 * size + 1
    cdef int64_t *told = <int64_t *> allocate(memory, n * size, sizeof(int64_t))
    cdef int64_t *own = <int64_t *> allocate(memory, n, sizeof(int64_t))
    cdef uint64_t signature = sign(KIND_ALL_TO_ALL, NO_OP, x, NO_ROOT, mixed(1, volume(row)) >> 28)
    for i, number in enumerate((*sent, *(got or (-1,) * size), room)):
        own[i] = number
    memset(&mine, 0, sizeof(array_t))
    mine.data, mine.count, mine.nbytes, mine.itemsize = own, n, n * sizeof(int64_t), sizeof(int64_t)
    if mine.nbytes <= SHMRING_WHISPER_NBYTES:
        open_talk(&t, signature, &mine, True)
        t.last, t.part_nbytes, t.stride, t.out = size, mine.nbytes, mine.nbytes, <char *> told
        e.talk(&t, timeout_ns)
    else:
        all_of_them = mine
        all_of_them.data, all_of_them.nbytes = told, mine.nbytes * size
        follow_plan(e, "all_gather", mine.nbytes, signature, &mine, &all_of_them, NO_ROOT, NULL, timeout_ns)
    matrix = tuple([tuple([told[j * n + i] for i in range(size)]) for j in range(size)])
    for i in range(size):
        for j in range(size):
            if 0 <= told[i * n + size + j] != matrix[j][i]:
                e.disagree(j, signature, f"rank {j} sends {matrix[j][i]} rows to rank {i}, which expects "
                                         f"{told[i * n + size + j]}")
        coming = sum([line[i] for line in matrix])
        if 0 <= told[i * n + n - 1] != coming:
            e.disagree(i, signature, f"rank {i} has room for {told[i * n + n - 1]} rows, and {coming} come")
    return matrix


cdef int exchange(Engine e, tuple matrix, array_t *x, array_t *out, tuple row, int64_t timeout_ns) except -1:
    """All-to-all of blocks whose sizes all ranks know."""
    cdef talk_t t
    cdef part_t *parts
    cdef list memory = []
    cdef int rank = e.c.circle.rank, size = e.c.circle.size, j
    cdef size_t place = 0
    cdef object width = volume(row) * x.itemsize
    cdef uint64_t digest = mixed(2, volume(row))
    sizes = tuple([tuple([n * width for n in line]) for line in matrix])
    for line in matrix:
        for n in line:
            digest = mixed(digest, n)
    signature = sign(KIND_ALL_TO_ALL, NO_OP, x, NO_ROOT, digest >> 28)
    if max([sum(line) for line in sizes]) > e.whisper_limit:
        return follow_plan(e, "all_to_all", sizes, signature, x, out, NO_ROOT, NULL, timeout_ns)
    parts = <part_t *> allocate(memory, size, sizeof(part_t))
    for j in range(size):
        parts[j].offset, parts[j].nbytes, parts[j].place = sum(sizes[j][:rank]), sizes[j][rank], place
        place += parts[j].nbytes
    open_talk(&t, signature, x, True)
    t.last, t.parts, t.out = size, parts, <char *> out.data
    return e.talk(&t, timeout_ns)
