"""Coalesced all-reduces: many arrays in one operation, so that small ones share one round of waiting for the peers.

Small arrays are packed into a scratch buffer that stays in the cache, move as one array, and are unpacked; two copies
cost less than one more round of waiting. Large arrays gain nothing from that and move separately. The signature has a
hash of the list's layout (counts and dtypes in their order), because lists that differ may have equally many bytes.
"""

import numpy as np

from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy

from shmring.core.arrays.array_view cimport array_t, copy_back, is_copy, target_array
from shmring.collectives.calls.calls cimport check, number_of
from shmring.core.base.hashing cimport mix
from shmring.collectives.calls.plan cimport Plan, dispatch, prepare, prepare_user_op
from shmring.collectives.engine.call cimport Executor, call_t, open_call
from shmring.collectives.engine.kinds cimport KIND_ALL_REDUCE, KIND_ALL_REDUCE_MANY
from shmring.collectives.engine.signature cimport DTYPE_BITS, NO_OP, NO_ROOT, pack_bundle_signature

cdef enum:
    SMALL_NBYTES = 16384         # arrays up to this size are packed (docs/async.md, "Many arrays", has the measurement)
    BUNDLE_NBYTES = 1 << 20      # together up to this size: a scratch that stays in the second-level cache


# ---- small arrays together -------------------------------------------------------------------------------------------

ctypedef struct piece_t:
    char *data
    size_t nbytes


cdef class Bundle(Plan):
    """Small arrays that move in one request. Only one thread at a time is in the engine, so all bundles of a
    communicator share one scratch buffer."""

    cdef piece_t *pieces
    cdef int npieces
    cdef char *scratch           # of BUNDLE_NBYTES; `held` keeps it

    def __dealloc__(self):
        free(self.pieces)

    cdef int make(self) except -1:
        with nogil:
            self.pack()
        self.prepared.run()
        with nogil:
            self.unpack()
        return 0

    cdef void pack(self) noexcept nogil:
        cdef char *place = self.scratch
        cdef int i
        for i in range(self.npieces):
            memcpy(place, self.pieces[i].data, self.pieces[i].nbytes)
            place += self.pieces[i].nbytes

    cdef void unpack(self) noexcept nogil:
        cdef char *place = self.scratch
        cdef int i
        for i in range(self.npieces):
            memcpy(self.pieces[i].data, place, self.pieces[i].nbytes)
            place += self.pieces[i].nbytes


# ---- lists of arrays -------------------------------------------------------------------------------------------------

cdef class Many(Plan):
    """A list of arrays in one operation: bundles of the small ones, and each large one."""

    cdef list steps
    cdef list holders

    cdef int make(self) except -1:
        for step in self.steps:
            (<Plan> step).make()
        return 0

    cdef object conclude(self):
        for step in self.steps:
            (<Plan> step).conclude()
        for holder in self.holders:
            copy_back(holder)
        return self.result

    cdef bint has_copies(self) except -1:
        return any([is_copy(holder) for holder in self.holders])

    @property
    def name(self):
        """The call in words."""
        return f"all_reduce_many({len(self.holders)} arrays)"

    @property
    def label(self):
        """The name: signatures have no place for it."""
        return self.name

    def describe(self):
        """The schedules of this rank, in readable lines.

        Returns
        -------
        str
        """
        return "\n".join([self.name, *[step.describe() for step in self.steps]])

    def __repr__(self):
        bundles = sum([isinstance(step, Bundle) for step in self.steps])
        return (f"<shmring.Plan {self.name} on {self.executor.engine.name!r}: {bundles} bundles of small arrays, "
                f"{len(self.steps) - bundles} large ones>")


cdef int by_address(const void *a, const void *b) noexcept nogil:
    cdef char *first = (<const piece_t *> a).data
    cdef char *second = (<const piece_t *> b).data
    return (first > second) - (first < second)


cdef int check_apart(piece_t *pieces, int n) except -1:
    """Raise if two arrays overlap: one would receive into what the other sends. Sorts them."""
    cdef int i
    qsort(pieces, n, sizeof(piece_t), by_address)
    for i in range(1, n):
        if pieces[i - 1].data + pieces[i - 1].nbytes > pieces[i].data:
            raise ValueError("two of the arrays overlap; pass arrays that share no memory")
    return 0


cdef class Sorter:
    """The arrays of one call, checked and sorted into bundles."""

    cdef Executor executor
    cdef array_t *arrays
    cdef piece_t *pieces
    cdef int n
    cdef list holders
    cdef uint64_t layout
    cdef object scratch
    cdef char *base

    def __dealloc__(self):
        free(self.arrays)
        free(self.pieces)

    cdef int add_arrays(self, Executor executor, list xs) except -1:
        cdef int i, nfull = 0
        cdef array_t *a
        self.executor = executor
        self.n = len(xs)
        self.holders = []
        self.arrays = <array_t *> malloc(max(self.n, 1) * sizeof(array_t))
        self.pieces = <piece_t *> malloc(max(self.n, 1) * sizeof(piece_t))
        if self.arrays == NULL or self.pieces == NULL:
            raise MemoryError(f"no memory for the descriptions of {self.n} arrays")
        for i, x in enumerate(xs):
            a = &self.arrays[i]
            self.holders.append(target_array(x, a, False))
            if a.nbytes:
                self.pieces[nfull].data = <char *> a.data
                self.pieces[nfull].nbytes = a.nbytes
                nfull += 1
            self.layout = mix(self.layout, <uint64_t> a.count << DTYPE_BITS | a.dtype)
        check_apart(self.pieces, nfull)
        if executor.scratch is None:
            executor.scratch = np.empty(BUNDLE_NBYTES, np.uint8)
        self.scratch = executor.scratch
        self.base = <char *> <uintptr_t> self.scratch.ctypes.data
        return 0

    cdef list bundles(self, int dtype):
        """Lists of the indices of small arrays of one dtype, one list per bundle."""
        cdef int i
        cdef size_t nbytes = BUNDLE_NBYTES
        cdef list found = [], members = []
        for i in range(self.n):
            if self.arrays[i].nbytes > SMALL_NBYTES or self.arrays[i].dtype != dtype:
                continue
            if nbytes + self.arrays[i].nbytes > BUNDLE_NBYTES:
                members = []
                found.append(members)
                nbytes = 0
            members.append(i)
            nbytes += self.arrays[i].nbytes
        return found

    cdef Bundle bundle(self, list members, int dtype, int op, int64_t timeout_ns):
        cdef Bundle call = Bundle.__new__(Bundle)
        cdef call_t c
        cdef array_t *whole = &c.x
        cdef int i
        call.pieces = <piece_t *> malloc(len(members) * sizeof(piece_t))
        if call.pieces == NULL:
            raise MemoryError(f"no memory for the descriptions of {len(members)} arrays")
        whole.nbytes = 0
        for i in members:
            call.pieces[call.npieces].data = <char *> self.arrays[i].data
            call.pieces[call.npieces].nbytes = self.arrays[i].nbytes
            whole.nbytes += self.arrays[i].nbytes
            call.npieces += 1
        call.scratch = self.base
        whole.data = self.base
        whole.dtype = dtype
        whole.itemsize = self.arrays[<int> members[0]].itemsize
        whole.count = whole.nbytes // whole.itemsize
        open_call(&c, KIND_ALL_REDUCE, NO_ROOT, timeout_ns)
        c.op, c.out = op, c.x
        check(self.executor, &c)
        c.signature = pack_bundle_signature(KIND_ALL_REDUCE_MANY, op, dtype, self.layout, whole.count)
        prepare(call, self.executor, &c, self.scratch, None, None)
        return call

    cdef Many many(self, list steps, list xs):
        cdef Many many = Many.__new__(Many)
        many.executor = self.executor
        many.steps = steps
        many.holders = self.holders
        many.result = xs
        return many


cdef Plan one(Executor executor, array_t *a, holder, int op, int64_t timeout_ns):
    """The call on one array, in place."""
    cdef call_t c
    open_call(&c, KIND_ALL_REDUCE, NO_ROOT, timeout_ns)
    c.x, c.out, c.op = a[0], a[0], op
    check(executor, &c)
    return prepare(Plan.__new__(Plan), executor, &c, holder, None, None)


cdef object all_reduce_many(Executor executor, arrays, op, int64_t timeout_ns, async_op):
    cdef Sorter sorter = Sorter.__new__(Sorter)
    cdef array_t *a
    cdef call_t c
    cdef int i, code
    xs = list_of(arrays)
    sorter.add_arrays(executor, xs)
    open_call(&c, KIND_ALL_REDUCE, NO_ROOT, timeout_ns)
    codes = {}
    for i in range(sorter.n):
        a = &sorter.arrays[i]
        if a.dtype not in codes:
            c.x, c.out, c.op = a[0], a[0], number_of(op, a.dtype)
            check(executor, &c)
            codes[a.dtype] = c.op
    steps = []
    for dtype, code in codes.items():
        for members in sorter.bundles(dtype) if code != NO_OP else ():
            steps.append(sorter.bundle(members, dtype, code, timeout_ns))
    for i in range(sorter.n):
        a = &sorter.arrays[i]
        code = codes[a.dtype]
        if code == NO_OP:
            c.x, c.out, c.op = a[0], a[0], NO_OP
            steps.append(prepare_user_op(executor, &c, op, None, None, xs[i]))
        elif a.nbytes > SMALL_NBYTES:
            steps.append(one(executor, a, sorter.holders[i], code, timeout_ns))
    return dispatch(sorter.many(steps, xs), async_op)


def list_of(arrays):
    """``arrays`` as a list; a single array is refused, as its rows would be taken for the arrays."""
    if not isinstance(arrays, (list, tuple)):
        raise TypeError(f"arrays is {type(arrays).__name__}: pass a list or a tuple of arrays")
    return list(arrays)
