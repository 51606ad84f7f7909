"""Checked collectives and their executors.

A collective is one record, `call_t`, whether it comes from Python or C, is made now, in the background or repeatedly.
`check_call` checks it, without the interpreter; an `Executor` makes it.
"""

from shmring.core.arrays.array_view cimport array_t
from shmring.core.base.hashing cimport mix
from shmring.collectives.engine.kinds cimport KIND, KIND_ALL_TO_ALL
from shmring.collectives.engine.signature cimport pack_digest

from shmring.dtypes import DTYPES, OPS

cdef int64_t MOST_ELEMENTS = <int64_t> 1 << 58      # of all blocks of a call with counts: no product overflows


# ---- blocks of different sizes ---------------------------------------------------------------------------------------

cdef int64_t ncounts(call_t *c, int size) noexcept nogil:
    """The number of counts of a call."""
    return size * <int64_t> size if c.kind == KIND_ALL_TO_ALL else size


cdef inline int64_t sum_counts(const int64_t *counts, int n, int step) noexcept nogil:
    """The sum of n counts, ``step`` apart."""
    cdef int64_t total = 0
    cdef int i
    for i in range(n):
        total += counts[i * <int64_t> step]
    return total


cdef int64_t elements_of_x(call_t *c, int rank, int size) noexcept nogil:
    """The elements of a rank's ``x`` by the counts of a call."""
    if c.kind == KIND_ALL_TO_ALL:
        return sum_counts(c.counts + rank * <int64_t> size, size, 1)
    return sum_counts(c.counts, size, 1) if KIND[c.kind].blocks_in else c.counts[rank]


cdef int64_t elements_of_out(call_t *c, int rank, int size) noexcept nogil:
    """The elements of a rank's ``out`` by the counts of a call."""
    if c.kind == KIND_ALL_TO_ALL:
        return sum_counts(c.counts + rank, size, size)
    return sum_counts(c.counts, size, 1) if KIND[c.kind].blocks_out else c.counts[rank]


cdef size_t place_by_counts(call_t *c, int rank) noexcept nogil:
    """The offset of a rank's block in an array of blocks, by the counts."""
    return <size_t> sum_counts(c.counts, rank, 1) * c.x.itemsize


cdef size_t largest_message(call_t *c, int size) noexcept nogil:
    """The size of the largest message that a rank sends, by the counts."""
    cdef int64_t count = 0
    cdef int j
    for j in range(nblocks_out(c.kind, size)):
        count = max(count, elements_of_x(c, j, size))
    return <size_t> count * c.x.itemsize


# ---- checks ----------------------------------------------------------------------------------------------------------

cdef int check_counts(call_t *c, int rank, int size) noexcept nogil:
    """Check the counts of a call, and the arrays against them: SOUND, or the mistake."""
    cdef int64_t left = MOST_ELEMENTS
    cdef int64_t i
    for i in range(ncounts(c, size)):
        if not 0 <= c.counts[i] <= left:
            return BAD_COUNTS
        left -= c.counts[i]
    if is_sender(c.kind, rank, c.root) and c.x.count != <size_t> elements_of_x(c, rank, size):
        return BAD_X
    if is_receiver(c.kind, rank, c.root) and c.out.count != <size_t> elements_of_out(c, rank, size):
        return BAD_OUT
    if c.kind == KIND_ALL_TO_ALL and c.x.nbytes and c.x.data == c.out.data:
        for i in range(size):
            if c.counts[i * size + rank] != c.counts[rank * <int64_t> size + i]:
                return UNEVEN
    return SOUND


cdef uint64_t sign_counts(call_t *c, int size) noexcept nogil:
    """The signature of a call with counts."""
    cdef uint64_t digest = 1 if c.x.dtype >= 0 else c.x.itemsize
    cdef int64_t i
    for i in range(ncounts(c, size)):
        digest = mix(digest, c.counts[i])
    return pack_digest(c.kind, c.op, c.x.dtype, c.root, digest)


cdef int refuse_call(int mistake, call_t *c, int rank, int size) except -1:
    """Raise the error of a mistake in a call."""
    if mistake == BAD_ROOT:
        refuse_root(c.root, size)
    if mistake == BAD_OP:
        raise TypeError(f"op {OPS[c.op]!r} is not defined on {DTYPES[c.x.dtype].name}")
    if mistake == BAD_DTYPE:
        raise TypeError(f"out has dtype {dtype_name(&c.out)}, x has {dtype_name(&c.x)}; they must be equal")
    if mistake == BAD_COUNTS:
        numbers = [c.counts[i] for i in range(ncounts(c, size))]
        raise ValueError(f"counts={numbers}: must be numbers of elements, from 0 up, {MOST_ELEMENTS} together at most")
    if mistake == BAD_X:
        raise ValueError(f"x has {c.x.count} elements; the counts require {elements_of_x(c, rank, size)}")
    if mistake == BAD_OUT and c.counts != NULL:
        refuse_out(c, elements_of_out(c, rank, size))
    if mistake == BAD_OUT:
        count = c.x.count * nblocks_out(c.kind, size) // nblocks_in(c.kind, size)
        raise ValueError(f"out has {c.out.count} elements; for x with {c.x.count} it must have {count}")
    if mistake == TOO_LARGE:
        raise ValueError(f"{c.x.count} elements in one call: at most {MAX_COUNT} are supported; make several calls")
    if mistake == UNEVEN:
        raise ValueError("in place, a rank receives from each peer as many elements as it sends there: pass "
                         "out_counts equal to counts, or another array as out")
    raise ValueError("x and out overlap, but not in place: pass as one of them exactly the part of the other where the "
                     "call has it in place (the same array where both are of one size), or arrays that do not overlap")


cdef int refuse_root(int root, int size) except -1:
    """Raise that ``root`` is no rank."""
    raise ValueError(f"root={root}: must be a rank, from 0 to {size - 1}")


cdef object dtype_name(const array_t *a):
    return DTYPES[a.dtype].name if a.dtype >= 0 else f"{a.itemsize} opaque bytes"


cdef int refuse_out(call_t *c, count) except -1:
    """Raise that ``out`` has another number of elements than the counts require."""
    raise ValueError(f"out has {c.out.count} elements; the counts require {count}")


# ---- executors -------------------------------------------------------------------------------------------------------

cdef class Prepared:
    """A checked call that an executor has prepared. It does not keep the arrays alive."""

    cdef int run(self) except -1:
        """Make the call. The caller has entered."""
        raise NotImplementedError

    def describe(self):
        """The steps of this rank, in readable lines."""
        return ""

    def outline(self):
        """The steps of this rank, in a few words."""
        return ""


cdef class Executor:
    """Executes checked calls. One thread at a time is in a call: it *enters* and *leaves*."""

    cdef int run(self, call_t *call) except -1:
        """Enter, make a call and leave. The caller keeps the arrays alive."""
        raise NotImplementedError

    cdef Prepared prepare(self, call_t *call):
        """Make a call ready, without sending anything."""
        raise NotImplementedError

    cdef int enter(self) except -1:
        """Keep calls of other threads out until `leave`; raises if the communicator is unusable."""
        raise NotImplementedError

    cdef void leave(self) noexcept:
        """Let other threads make calls."""
