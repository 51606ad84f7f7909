"""Reductions of p arrays into one or two, by the kernels of one instruction set.

The loops are in ``core/kernel/kernels.h``, compiled once for every instruction set. The set is chosen at import: the
widest that this machine can run, or the one named by ``SHMRING_KERNEL``. All of them give the same bits.
docs/maintainers/kernels.md has the semantics and the figures.
"""

import os

from libc.stdint cimport uint8_t, uintptr_t

from shmring.core.c.layout cimport SHMRING_ORDINARY, SHMRING_PREFETCHED, SHMRING_STREAMING, SHMRING_STRING
from shmring.core.kernel.numbers cimport check_rows

from shmring.dtypes import DTYPES, OPS

__all__ = ["kernels", "use_kernel"]


cdef extern from "core/kernel/copy.h" nogil:
    void copy_streaming(void *dst, const void *src, size_t nbytes)
    void copy_string(void *dst, const void *src, size_t nbytes)
    void stream_fence()
    bint can_ask_for_lines()
    bint has_fast_strings()
    void ask_for_first_lines(void *p, size_t nbytes)


cdef extern from "core/kernel/dispatch.h" nogil:
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
    # By streaming and string stores a block goes there from a copy in the first-level cache.
    cdef bint by_scratch = dst_stores == SHMRING_STREAMING or dst_stores == SHMRING_STRING
    cdef uint8_t *aligned = <uint8_t *> dst if by_scratch or also == NULL else <uint8_t *> also
    cdef uint8_t *asked = NULL      # its first lines come while the block is folded
    cdef uint8_t *block
    cdef size_t at = 0, n, begins, nbytes
    cdef int j

    if also == NULL and dst_stores == SHMRING_ORDINARY:
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


def _choose():
    """The kernel named by ``SHMRING_KERNEL``, or the widest that runs."""
    *_, widest = _runnable()
    try:
        use_kernel(os.environ.get("SHMRING_KERNEL") or widest)
    except ValueError as error:
        raise ImportError(f"SHMRING_KERNEL: {error}") from None


check_rows(DTYPES, OPS)
_choose()
