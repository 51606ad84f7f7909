"""Reductions of p arrays into one or two, by the kernels of one instruction set.

The loops are in ``_c/kernels.h``, compiled once for every instruction set; which one runs is chosen at import (the
widest this machine has, or the one named by ``SHMRING_KERNEL``). All of them give the same bits. docs/kernels.md has
the semantics and the figures.
"""

import os

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint8_t, uintptr_t

from shmring.dtypes import DTYPE_CODES, DTYPES, OPS, op_code, widening

__all__ = ["copy_array", "kernels", "reduce_arrays", "reduce_part", "use_kernel"]


cdef extern from "copy.h" nogil:
    void copy_streaming(void *dst, const void *src, size_t nbytes)
    void stream_fence()


cdef extern from "dispatch.h" nogil:
    const int NDTYPES
    const int NOPS
    const int NKERNEL_SETS
    const char *dtype_names[]
    const size_t dtype_itemsizes[]
    const char *op_names[]

    ctypedef struct kernel_set:
        const char *name
        void copy(void *dst, const void *src, size_t nbytes) noexcept nogil
        bint runs() noexcept

    const kernel_set kernel_sets[]
    reduce_kernel kernel_of(int which, int op, int dtype)
    const carrier_t *carrier_of(int which, int op, int dtype)


# A block is written and read again while it is in the first-level cache, beside what streams through from the sources.
cdef enum:
    BLOCK_NBYTES = 8192
    LINE_NBYTES = 64
    MAX_BLOCK_SOURCES = 512

cdef int chosen_set = 0


cdef reduce_kernel find_kernel(int op, int dtype) noexcept nogil:
    return kernel_of(chosen_set, op, dtype)


cdef const carrier_t *find_carrier(int op, int dtype) noexcept nogil:
    return carrier_of(chosen_set, op, dtype)


cdef void copy_bytes(void *dst, const void *src, size_t nbytes, bint streaming) noexcept nogil:
    if streaming:
        copy_streaming(dst, src, nbytes)
        stream_fence()
    else:
        kernel_sets[chosen_set].copy(dst, src, nbytes)


cdef inline void apply(
    const fold_t *f, void *dst, const void *const *src, int nsrc, size_t count
) noexcept nogil:
    if f.kernel != NULL:
        f.kernel(dst, src, nsrc, count)
    else:
        f.closes(dst, src, nsrc, count, f.total)


cdef void reduce_into(
    const fold_t *f, void *dst, void *also, const void *const *src, int nsrc, size_t count,
    bint dst_streaming, bint also_streaming,
) noexcept nogil:
    cdef const void *block_src[MAX_BLOCK_SOURCES]
    cdef uint8_t room[BLOCK_NBYTES + LINE_NBYTES]
    cdef uint8_t *scratch = room + (-<uintptr_t> room & (LINE_NBYTES - 1))
    cdef uint8_t *streamed = <uint8_t *> dst if dst_streaming else <uint8_t *> also if also_streaming else NULL
    cdef uint8_t *block
    cdef size_t at = 0, n, begins, nbytes
    cdef int j

    if also == NULL and not dst_streaming:
        apply(f, dst, src, nsrc, count)
        return
    if nsrc > MAX_BLOCK_SOURCES:
        # So many streams leave nothing of a block in the first-level cache: two plain passes.
        apply(f, dst, src, nsrc, count)
        if also != NULL:
            copy_bytes(also, dst, count * f.dst_itemsize, also_streaming)
        return

    # The first block is cut short so that all later ones start on a line of what is streamed.
    n = (BLOCK_NBYTES - (<uintptr_t> streamed & (LINE_NBYTES - 1))) // f.dst_itemsize
    while at < count:
        n = min(n, count - at)
        block_src[0] = <const uint8_t *> src[0] + at * f.first_itemsize
        for j in range(1, nsrc):
            block_src[j] = <const uint8_t *> src[j] + at * f.itemsize
        begins, nbytes = at * f.dst_itemsize, n * f.dst_itemsize
        block = scratch if dst_streaming else <uint8_t *> dst + begins
        apply(f, block, block_src, nsrc, n)
        if dst_streaming:
            copy_streaming(<uint8_t *> dst + begins, block, nbytes)
        if also != NULL:
            if also_streaming:
                copy_streaming(<uint8_t *> also + begins, block, nbytes)
            else:
                kernel_sets[chosen_set].copy(<uint8_t *> also + begins, block, nbytes)
        at += n
        n = BLOCK_NBYTES // f.dst_itemsize
    if dst_streaming or also_streaming:
        stream_fence()


# ---- The Python face: checks, pointers, one call.

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
        "built": tuple(kernel_sets[k].name.decode() for k in range(NKERNEL_SETS)),
        "runnable": tuple(_runnable()),
        "chosen": kernel_sets[chosen_set].name.decode(),
    }


def use_kernel(name):
    """Use the kernels of instruction set ``name`` from now on, in this process.

    For tests and comparisons: all give the same bits. What is already planned keeps the kernel it found.

    Parameters
    ----------
    name : str
        One of ``kernels()["runnable"]``.

    Raises
    ------
    ValueError
        Unknown, or not runnable here; names those that are. The choice stays as it was.
    """
    global chosen_set
    chosen_set = _set_named(name)


cdef class _Span:
    """The bytes of one array, kept alive."""

    cdef object array
    cdef str role
    cdef uint8_t *start
    cdef size_t nbytes

    def __cinit__(self, array, str role, bint written):
        import numpy

        if not isinstance(array, numpy.ndarray):
            raise TypeError(f"{role} must be a NumPy array, not {type(array).__name__}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{role} must be C-contiguous")
        address, read_only = array.__array_interface__["data"]
        if written and read_only:
            raise ValueError(f"{role} is read-only")
        self.array = array
        self.role = role
        self.start = <uint8_t *> <uintptr_t> address
        self.nbytes = array.nbytes

    cdef bint half_overlaps(self, _Span other) noexcept:
        return (self.start != other.start and self.start < other.start + other.nbytes
                and other.start < self.start + self.nbytes)


cdef void _check_written(_Span span, list others) except *:
    """Refuse a destination that overlaps another array without being the same."""
    cdef _Span other
    for other in others:
        if span.half_overlaps(other):
            raise ValueError(f"{span.role} overlaps another array without being the same")


cdef void _check_like(_Span span, first) except *:
    """Refuse an array that differs from the first source in shape or dtype."""
    if span is not None and (span.array.shape != first.shape or span.array.dtype != first.dtype):
        raise ValueError(
            f"{span.role} is {span.array.dtype}{list(span.array.shape)}, "
            f"sources[0] is {first.dtype}{list(first.shape)}"
        )


cdef class _Reduction:
    """The arguments of `reduce_arrays`, checked once; every call reduces again."""

    cdef list spans
    cdef object out
    cdef _Span dst, also
    cdef reduce_kernel kernel
    cdef const carrier_t *carrier
    cdef int wide
    cdef const void **src
    cdef size_t count, itemsize
    cdef bint dst_streaming, also_streaming

    def __cinit__(self, sources, op, out=None, also=None, kernel=None, streaming=False):
        import numpy

        sources = list(sources)
        self.spans = [_Span(array, f"sources[{k}]", False) for k, array in enumerate(sources)]
        if not sources:
            raise ValueError("sources must hold at least one array")
        if streaming not in (False, True, "out", "also"):
            raise ValueError(f"streaming must be a bool, 'out' or 'also', not {streaming!r}")
        first = sources[0]
        self.out = numpy.empty(first.shape, first.dtype) if out is None else out
        self.dst = _Span(self.out, "out", True)
        _check_written(self.dst, self.spans)
        if also is not None:
            self.also = _Span(also, "also", True)
            _check_written(self.also, [*self.spans, self.dst])
            if self.also.start == self.dst.start and self.dst.nbytes:
                raise ValueError("also must not be out")
        for span in [*self.spans, self.dst, self.also]:
            _check_like(span, first)

        dtype = DTYPE_CODES.get(first.dtype.name)
        if dtype is None or not first.dtype.isnative:
            raise TypeError(f"no reductions of dtype {first.dtype!r}; known: {', '.join(d.name for d in DTYPES)}")
        code = op_code(op)
        which = chosen_set if kernel is None else _set_named(kernel)
        self.kernel, self.carrier = kernel_of(which, code, dtype), carrier_of(which, code, dtype)
        self.wide = widening(code, dtype)
        if self.kernel == NULL:
            raise TypeError(f"op {OPS[code]!r} is not defined on {first.dtype.name}")

        self.count, self.itemsize = first.size, first.itemsize
        self.dst_streaming, self.also_streaming = streaming in (True, "out"), streaming in (True, "also")
        self.src = <const void **> PyMem_Malloc(len(sources) * sizeof(void *))
        if self.src == NULL:
            raise MemoryError
        for k in range(len(sources)):
            self.src[k] = (<_Span> self.spans[k]).start

    def __dealloc__(self):
        PyMem_Free(self.src)

    def __call__(self):
        cdef void *also = NULL if self.also is None else self.also.start
        cdef int nsrc = len(self.spans)
        cdef fold_t f = whole_fold(self.kernel, self.itemsize)
        with nogil:
            reduce_into(&f, self.dst.start, also, self.src, nsrc, self.count, self.dst_streaming, self.also_streaming)
        return self.out


def reduce_arrays(sources, op, out=None, *, also=None, kernel=None, streaming=False):
    """Reduce arrays of this process, element by element, in the order given.

    Parameters
    ----------
    sources : sequence of ndarray
        At least one; C-contiguous, equal in shape and dtype (any of ``shmring.dtypes.DTYPES``, ``ml_dtypes.bfloat16``
        included).
    op : str
        One of ``shmring.dtypes.OPS`` or an alias.
    out : ndarray, optional
        Like the sources, and may be any one of them; any other overlap is refused. None: a new array.
    also : ndarray, optional
        Gets the same result as ``out``; may be one of the sources, not ``out``.
    kernel : str, optional
        Instruction set for this call, see `kernels`. None: the chosen one.
    streaming : bool or {"out", "also"}, optional
        Store past the cache (True: both).

    Returns
    -------
    ndarray
        ``out``, or the new array.

    Raises
    ------
    TypeError, ValueError
        Bad argument; nothing was written.
    """
    return _Reduction(sources, op, out, also, kernel, streaming)()


def reduce_part(sources, op, *, prefix=None, total=None, kernel=None, streaming=False):
    """Make one part of a reduction, as the engine does where it goes from domain to domain; for tests and benchmarks.

    Parameters
    ----------
    sources, op, kernel
        As in `reduce_arrays`.
    prefix : ndarray, optional
        What the part before returned. None: this is the first.
    total : int, optional
        How many operands all parts have; this is the last. None: it is not.
    streaming : bool, optional
        Store past the cache.

    Returns
    -------
    ndarray
        The result, or a prefix for the next part: of float32 where 16-bit floats are summed.
    """
    import numpy

    cdef _Reduction checked = _Reduction(sources, op, kernel=kernel)
    cdef fold_t f = whole_fold(checked.kernel, checked.itemsize)
    cdef const void *src[MAX_BLOCK_SOURCES]
    cdef int nsrc = 0
    cdef bint past_cache = streaming
    first = (<_Span> checked.spans[0]).array
    form = numpy.dtype("float32") if checked.wide > 1 else first.dtype
    if prefix is not None and (prefix.shape != first.shape or prefix.dtype != form):
        raise ValueError(f"prefix is {prefix.dtype}{list(prefix.shape)}, of these sources it is "
                         f"{form}{list(first.shape)}")
    spans = [*([] if prefix is None else [_Span(prefix, "prefix", False)]), *checked.spans]
    if len(spans) > MAX_BLOCK_SOURCES:
        raise ValueError(f"{len(spans)} arrays in one part; at most {MAX_BLOCK_SOURCES}")
    for span in spans:
        src[nsrc] = (<_Span> span).start
        nsrc += 1
    if prefix is not None:
        f.first_itemsize = prefix.itemsize
    if total is None:
        f.dst_itemsize = form.itemsize
        if checked.carrier != NULL:
            f.kernel = checked.carrier.opens if prefix is None else checked.carrier.carries
    elif checked.carrier != NULL and prefix is not None:
        f.kernel, f.closes, f.total = NULL, checked.carrier.closes, total
    cdef _Span dst = _Span(numpy.empty(first.shape, form if total is None else first.dtype), "the result", True)
    with nogil:
        reduce_into(&f, dst.start, NULL, src, nsrc, checked.count, past_cache, False)
    return dst.array


def copy_array(dst, src, *, streaming=False):
    """Copy ``src`` to ``dst`` as the engine does; for tests and benchmarks.

    Parameters
    ----------
    dst, src : ndarray
        C-contiguous, of equal size in bytes, not overlapping.
    streaming : bool, optional
        Store past the cache.
    """
    cdef _Span to = _Span(dst, "dst", True), source = _Span(src, "src", False)
    if to.nbytes != source.nbytes:
        raise ValueError(f"dst has {to.nbytes} bytes, src {source.nbytes}")
    _check_written(to, [source])
    cdef bint past_cache = streaming
    with nogil:
        copy_bytes(to.start, source.start, to.nbytes, past_cache)


def _words_of_c():
    """The lists in ``_c/dispatch.h``: dtypes as (name, itemsize), ops, and which pairs have a kernel."""
    dtypes = [(dtype_names[d].decode().lower(), dtype_itemsizes[d]) for d in range(NDTYPES)]
    ops = [op_names[o].decode().lower() for o in range(NOPS)]
    defined = {
        (kernel_sets[k].name.decode(), ops[o], dtypes[d][0])
        for k in range(NKERNEL_SETS) for o in range(NOPS) for d in range(NDTYPES) if kernel_of(k, o, d) != NULL
    }
    return dtypes, ops, defined


def _choose():
    """The kernel named by ``SHMRING_KERNEL``, or the widest that runs."""
    *_, widest = _runnable()
    try:
        use_kernel(os.environ.get("SHMRING_KERNEL") or widest)
    except ValueError as error:
        raise ImportError(f"SHMRING_KERNEL: {error}") from None


_choose()
