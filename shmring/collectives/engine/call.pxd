# A checked collective, and its executor: the interface between the calls and the executors.
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from shmring.core.arrays.array_view cimport array_t, overlap
from shmring.collectives.engine.kinds cimport (
    KIND, KIND_BROADCAST, has_root, is_receiver, is_sender, nblocks_in, nblocks_out,
)
from shmring.collectives.engine.signature cimport MAX_COUNT, NO_OP, pack_signature
from shmring.core.kernel.reduce cimport find_kernel, reduce_kernel

# A collective with all of its arguments. An array that this rank does not use describes the other one: `out` is `x` in
# place and on a rank that only sends; on a rank that only receives, `x` has the size of the sender's.
ctypedef struct call_t:
    int kind                       # collectives/plan/kinds.py
    int root                       # NO_ROOT: none
    int op                         # NO_OP: none, or a Python function
    reduce_kernel kernel           # set by `check_call`
    # Elements of each rank's block, by rank; of an all-to-all what each rank sends to each, [sender * size + receiver].
    # NULL: all blocks have one size. The memory belongs to the caller until `Executor.run` or `prepare` returns.
    const int64_t *counts
    uint64_t signature             # what the ranks compare (collectives/engine/signature); set by `check_call`
    array_t x                      # of an opaque type only if `kind` moves data
    array_t out
    int64_t timeout_ns             # < 0: no limit
    # Borrowed references to Python objects that keep the memory of the arrays; NULL: the caller does.
    void *held
    void *kept

# What is wrong with a call; `refuse_call` has the texts.
cdef enum:
    SOUND = 0
    BAD_ROOT
    BAD_OP
    BAD_DTYPE
    BAD_COUNTS
    BAD_X
    BAD_OUT
    TOO_LARGE
    OVERLAPPING
    UNEVEN


cdef inline void open_call(call_t *c, int kind, int root, int64_t timeout_ns) noexcept nogil:
    """A call with equal blocks whose arrays are still to be set."""
    c.kind = kind
    c.root = root
    c.op = NO_OP
    c.kernel = NULL
    c.counts = NULL
    c.timeout_ns = timeout_ns
    c.held = c.kept = NULL


cdef inline void without_arrays(call_t *c) noexcept nogil:
    """Set empty arrays, for a call that has none."""
    memset(&c.x, 0, sizeof(array_t))
    c.out = c.x


# ---- blocks of different sizes ---------------------------------------------------------------------------------------

# Not inline: sums over counts would take registers from calls without.
cdef int64_t ncounts(call_t *c, int size) noexcept nogil
cdef int64_t elements_of_x(call_t *c, int rank, int size) noexcept nogil
cdef size_t place_by_counts(call_t *c, int rank) noexcept nogil
cdef size_t largest_message(call_t *c, int size) noexcept nogil


cdef inline size_t block_place(call_t *c, int rank, size_t nbytes) noexcept nogil:
    """Where the block of a rank begins in an array of blocks; ``nbytes`` is the size of equal ones."""
    return rank * nbytes if c.counts == NULL else place_by_counts(c, rank)


cdef inline size_t message_nbytes(call_t *c, int size) noexcept nogil:
    """The size of the largest message that a rank sends."""
    return c.x.nbytes if c.counts == NULL else largest_message(c, size)


# ---- checks ----------------------------------------------------------------------------------------------------------

cdef int check_counts(call_t *c, int rank, int size) noexcept nogil
cdef uint64_t sign_counts(call_t *c, int size) noexcept nogil


cdef inline uint64_t sign_call(call_t *c) noexcept nogil:
    """The signature of a call without counts."""
    return pack_signature(c.kind, c.op, c.x.dtype, c.root, c.x.count if c.x.dtype >= 0 else c.x.nbytes)


cdef inline bint is_in_place(call_t *c, int rank) noexcept nogil:
    """Whether x and out begin at the same address; if only one has blocks, the other and this rank's block of it."""
    cdef char *x = <char *> c.x.data
    cdef char *out = <char *> c.out.data
    if KIND[c.kind].blocks_in == KIND[c.kind].blocks_out:
        return x == out
    if KIND[c.kind].blocks_in:
        return x + block_place(c, rank, c.out.nbytes) == out
    return x == out + block_place(c, rank, c.x.nbytes)


cdef inline bint is_overlapping(call_t *c, int rank) noexcept nogil:
    """Whether x and out overlap, but not in place."""
    return overlap(&c.x, &c.out) and not is_in_place(c, rank)


cdef inline bint has_equal_blocks(call_t *c, int size) noexcept nogil:
    """Whether x and out have the same number of elements in each block; an array without blocks is one block."""
    return c.x.count * nblocks_out(c.kind, size) == c.out.count * nblocks_in(c.kind, size)


cdef inline int check_call(call_t *c, int rank, int size) noexcept nogil:
    """Check the arguments against each other, find the kernel and sign the call: SOUND, or what is wrong."""
    cdef int mistake
    if has_root(c.kind) and not 0 <= c.root < size:
        return BAD_ROOT
    if KIND[c.kind].takes_op and c.op != NO_OP:
        c.kernel = find_kernel(c.op, c.x.dtype)
        if c.kernel == NULL:
            return BAD_OP
    if c.counts != NULL:
        mistake = check_counts(c, rank, size)
        if mistake:
            return mistake
        c.signature = sign_counts(c, size)
    elif c.x.count > MAX_COUNT:
        return TOO_LARGE
    else:
        c.signature = sign_call(c)
    if c.kind == KIND_BROADCAST or not is_sender(c.kind, rank, c.root) or not is_receiver(c.kind, rank, c.root):
        return SOUND      # one array
    if c.out.dtype != c.x.dtype or c.out.itemsize != c.x.itemsize:
        return BAD_DTYPE
    if c.counts == NULL and not has_equal_blocks(c, size):
        return BAD_OUT
    return OVERLAPPING if is_overlapping(c, rank) else SOUND


cdef int refuse_call(int mistake, call_t *c, int rank, int size) except -1
cdef int refuse_root(int root, int size) except -1
cdef int refuse_out(call_t *c, count) except -1


# A checked call that an executor has made ready, to be made any number of times. `run`: the caller has entered.
cdef class Prepared:
    cdef readonly uint64_t signature     # of the call

    cdef int run(self) except -1


# Executes checked calls: of one machine (`shmring.collectives.calls.local`), or of several.
cdef class Executor:
    cdef readonly int rank
    cdef readonly int size
    # What asynchronous work is submitted to; it knows whether it is closed, and has `abort` and `disagree`.
    cdef readonly object engine
    cdef object scratch            # in which small arrays are packed (shmring.collectives.calls.coalesced)

    cdef int run(self, call_t *call) except -1
    cdef Prepared prepare(self, call_t *call)
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
