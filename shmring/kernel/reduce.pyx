"""Reductions of p arrays into one or two, by the kernels of one instruction set.

The loops are in ``kernel/kernels.h``, compiled once for every instruction set. The set is chosen at import: the widest
that this machine can run, or the one named by ``SHMRING_KERNEL``. All of them give the same bits.
docs/maintainers/kernels.md has the semantics and the figures.
"""

import os

from libc.stdint cimport uint8_t, uintptr_t

from shmring._c.layout cimport SHMRING_ORDINARY, SHMRING_PREFETCHED, SHMRING_STREAMING, SHMRING_STRING

from shmring.dtypes import DTYPE_CODES, DTYPES, OPS, op_code

__all__ = ["kernels", "reduce_arrays", "use_kernel"]


cdef extern from "kernel/copy.h" nogil:
    void copy_streaming(void *dst, const void *src, size_t nbytes)
    void copy_string(void *dst, const void *src, size_t nbytes)
    void stream_fence()
    bint can_ask_for_lines()
    bint has_fast_strings()
    void ask_for_first_lines(void *p, size_t nbytes)


cdef extern from "kernel/dispatch.h" nogil:
    const int NKERNEL_SETS

    ctypedef struct kernel_set:
        const char *name
        void copy(void *dst, const void *src, size_t nbytes) noexcept nogil
        void copy_ahead(void *dst, const void *src, size_t nbytes) noexcept nogil
        bint runs() noexcept

    const kernel_set kernel_sets[]
    reduce_kernel kernel_of(int which, int op, int dtype)
    const carrier_t *carrier_of(int which, int op, int dtype)


# A block is written and read again while it is in the first-level cache, together with the parts of the sources.
cdef enum:
    BLOCK_NBYTES = 8192
    LINE_NBYTES = 64
    MAX_BLOCK_SOURCES = 512

cdef int chosen_set = 0
cdef bint asks = can_ask_for_lines()          # else prefetched stores are ordinary ones,
by_strings = has_fast_strings()               # else string ones are


cdef reduce_kernel find_kernel(int op, int dtype) noexcept nogil:
    return kernel_of(chosen_set, op, dtype)


cdef const carrier_t *find_carrier(int op, int dtype) noexcept nogil:
    return carrier_of(chosen_set, op, dtype)


cdef inline void copy_unfenced(void *dst, const void *src, size_t nbytes, int stores) noexcept nogil:
    if stores == SHMRING_STREAMING:
        copy_streaming(dst, src, nbytes)
    elif stores == SHMRING_PREFETCHED and asks:
        kernel_sets[chosen_set].copy_ahead(dst, src, nbytes)
    elif stores == SHMRING_STRING and by_strings:
        copy_string(dst, src, nbytes)
    else:
        kernel_sets[chosen_set].copy(dst, src, nbytes)


cdef void copy_bytes(void *dst, const void *src, size_t nbytes, int stores) noexcept nogil:
    copy_unfenced(dst, src, nbytes, stores)
    if stores == SHMRING_STREAMING:
        stream_fence()


cdef inline void apply(
    const fold_t *f, void *dst, const void *const *src, int nsrc, size_t count
) noexcept nogil:
    if f.kernel != NULL:
        f.kernel(dst, src, nsrc, count)
    else:
        f.closes(dst, src, nsrc, count, f.total)


cdef void reduce_into(
    const fold_t *f, void *dst, void *also, const void *const *src, int nsrc, size_t count,
    int dst_stores, int also_stores,
) noexcept nogil:
    cdef const void *block_src[MAX_BLOCK_SOURCES]
    cdef uint8_t room[BLOCK_NBYTES + LINE_NBYTES]
    cdef uint8_t *scratch = room + (-<uintptr_t> room & (LINE_NBYTES - 1))
    # By other stores than ordinary ones a block goes there from a copy in the first-level cache.
    cdef bint by_scratch = dst_stores != SHMRING_ORDINARY
    cdef uint8_t *aligned = <uint8_t *> dst if by_scratch else <uint8_t *> also
    cdef uint8_t *asked = NULL      # its first lines come while the block is folded
    cdef uint8_t *block
    cdef size_t at = 0, n, begins, nbytes
    cdef int j

    if also == NULL and not by_scratch:
        apply(f, dst, src, nsrc, count)
        return
    if nsrc > MAX_BLOCK_SOURCES:
        # With so many sources no block stays in the first-level cache: two plain passes.
        apply(f, dst, src, nsrc, count)
        if also != NULL:
            copy_bytes(also, dst, count * f.dst_itemsize, also_stores)
        return

    if asks and SHMRING_PREFETCHED in (dst_stores, also_stores):
        asked = <uint8_t *> dst if dst_stores == SHMRING_PREFETCHED else <uint8_t *> also
    # The first block is shorter, so that all later ones start on a cache line of the destination.
    n = (BLOCK_NBYTES - (<uintptr_t> aligned & (LINE_NBYTES - 1))) // f.dst_itemsize
    while at < count:
        n = min(n, count - at)
        block_src[0] = <const uint8_t *> src[0] + at * f.first_itemsize
        for j in range(1, nsrc):
            block_src[j] = <const uint8_t *> src[j] + at * f.itemsize
        begins, nbytes = at * f.dst_itemsize, n * f.dst_itemsize
        block = scratch if by_scratch else <uint8_t *> dst + begins
        if asked != NULL:
            ask_for_first_lines(asked + begins, nbytes)
        apply(f, block, block_src, nsrc, n)
        if by_scratch:
            copy_unfenced(<uint8_t *> dst + begins, block, nbytes, dst_stores)
        if also != NULL:
            copy_unfenced(<uint8_t *> also + begins, block, nbytes, also_stores)
        at += n
        n = BLOCK_NBYTES // f.dst_itemsize
    if dst_stores == SHMRING_STREAMING or also_stores == SHMRING_STREAMING:
        stream_fence()


# ---- the Python interface -------------------------------------------------------------------------------------------

STORES = "ordinary", "streaming", "prefetched", "string"      # in the order of enum shmring_stores


cpdef int stores_named(name) except -1:
    """The number of a kind of stores."""
    if name not in STORES:
        raise ValueError(f"stores={name!r}: must be one of {', '.join(STORES)}")
    return STORES.index(name)


def _runnable():
    return [kernel_sets[k].name.decode() for k in range(NKERNEL_SETS) if kernel_sets[k].runs()]


cdef int _set_named(name) except -1:
    for k in range(NKERNEL_SETS):
        if kernel_sets[k].name.decode() == name and kernel_sets[k].runs():
            return k
    known = name in [kernel_sets[k].name.decode() for k in range(NKERNEL_SETS)]
    raise ValueError(
        f"kernel {name!r} {'cannot run on this machine' if known else 'is unknown'}; "
        f"can run here: {', '.join(_runnable())}"
    )


def kernels():
    """Which instruction sets the kernels exist for.

    Returns
    -------
    dict
        ``built``: those in this binary, narrowest first; ``runnable``: those of them that this machine and its
        operating system can run; ``chosen``: the one in use.
    """
    return {
        "built": tuple([kernel_sets[k].name.decode() for k in range(NKERNEL_SETS)]),
        "runnable": tuple(_runnable()),
        "chosen": kernel_sets[chosen_set].name.decode(),
    }


def use_kernel(name):
    """Use the kernels of instruction set ``name`` from now on, in this process.

    For tests and comparisons: all give the same bits. Plans that are already compiled keep their kernel.

    Parameters
    ----------
    name : str
        One of ``kernels()["runnable"]``.

    Raises
    ------
    ValueError
        Unknown, or not runnable here; the message lists those that are. The choice stays as it was.
    """
    global chosen_set
    chosen_set = _set_named(name)


def _check_array(str role, x, first):
    """Refuse what no kernel can read: all arrays are of one shape and dtype, in one piece."""
    if not hasattr(x, "__array_interface__"):
        raise TypeError(f"{role} must be a NumPy array, not {type(x).__name__}")
    if not x.flags.c_contiguous:
        raise ValueError(f"{role} must be C-contiguous")
    if x.shape != first.shape or x.dtype != first.dtype:
        raise ValueError(f"{role} is {x.dtype}{list(x.shape)}, sources[0] is {first.dtype}{list(first.shape)}")


def _check_written(str role, x, others):
    """Refuse a destination that cannot be written, or overlaps another array without being the same."""
    if not x.flags.writeable:
        raise ValueError(f"{role} is read-only")
    for other in others:
        if 0 < abs(x.ctypes.data - other.ctypes.data) < x.nbytes:
            raise ValueError(f"{role} overlaps another array without being the same")


def reduce_arrays(sources, op, out=None, *, also=None, kernel=None, stores="ordinary"):
    """Reduce arrays of this process element by element, in the order given.

    Parameters
    ----------
    sources : sequence of ndarray
        At least one; C-contiguous, equal in shape and dtype (any of ``shmring.dtypes.DTYPES``, ``ml_dtypes.bfloat16``
        included).
    op : str
        One of ``shmring.dtypes.OPS`` or an alias.
    out : ndarray, optional
        An array of their shape and dtype; may be one of the sources, else must not overlap them. None: a new array.
    also : ndarray, optional
        A second destination of the same result; may be one of the sources, not ``out``.
    kernel : str, optional
        Instruction set for this call, see `kernels`. None: the chosen one.
    stores : str or (str, str), optional
        How the destinations are written, one of `STORES`: one for both, or one for ``out`` and one for ``also``.
        ``streaming`` stores go past the cache; lines for ``prefetched`` ones are asked for ahead; ``string``: by string
        instructions.

    Returns
    -------
    ndarray
        ``out``, or the new array.

    Raises
    ------
    TypeError, ValueError
        Bad argument; nothing was written.
    """
    import numpy

    cdef fold_t f
    cdef uintptr_t src, dst, second = 0
    cdef size_t count
    cdef int nsrc, dst_stores, also_stores
    sources = list(sources)
    if not sources:
        raise ValueError("sources must hold at least one array")
    dst_stores, also_stores = map(stores_named, [stores] * 2 if isinstance(stores, str) else stores)
    for k, x in enumerate(sources):
        _check_array(f"sources[{k}]", x, sources[0])
    first = sources[0]
    dtype = DTYPE_CODES.get(first.dtype.name)
    if dtype is None or not first.dtype.isnative:
        raise TypeError(f"no reductions of dtype {first.dtype!r}; known: {', '.join([d.name for d in DTYPES])}")
    code = op_code(op)
    f = whole_fold(kernel_of(chosen_set if kernel is None else _set_named(kernel), code, dtype), first.itemsize)
    if f.kernel == NULL:
        raise TypeError(f"op {OPS[code]!r} is not defined on {first.dtype.name}")
    result = numpy.empty(first.shape, first.dtype) if out is None else out
    _check_array("out", result, first)
    _check_written("out", result, sources)
    if also is not None:
        _check_array("also", also, first)
        _check_written("also", also, [*sources, result])
        second = also.ctypes.data
        if second == result.ctypes.data and also.nbytes:
            raise ValueError("also must not be out")

    addresses = numpy.array([x.ctypes.data for x in sources], numpy.uintp)
    src, dst, nsrc, count = addresses.ctypes.data, result.ctypes.data, len(sources), first.size
    with nogil:
        reduce_into(&f, <void *> dst, <void *> second, <const void **> src, nsrc, count, dst_stores, also_stores)
    return result


def _choose():
    """The kernel named by ``SHMRING_KERNEL``, or the widest that runs."""
    *_, widest = _runnable()
    try:
        use_kernel(os.environ.get("SHMRING_KERNEL") or widest)
    except ValueError as error:
        raise ImportError(f"SHMRING_KERNEL: {error}") from None


_choose()
