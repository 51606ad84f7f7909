# cython: language_level=3, binding=True, cdivision=True
"""C functions of shmring.core.arrays for tests and benchmarks in Python; built by `support.compiled`."""

import time
from contextlib import contextmanager

import numpy as np

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from shmring.core.c.layout cimport SHMRING_ORDINARY
from shmring.core.arrays.array_view cimport array_t, copy_back, fast_array, is_copy, source_array, target_array
from shmring.core.arrays.outputs cimport empty_like_array, shape_of
from shmring.core.kernel.reduce cimport (
    carrier_t, copy_bytes, find_carrier, find_kernel, fold_t, reduce_into, reduce_kernel, whole_fold,
)

from shmring.core.kernel.reduce import kernels, stores_named, use_kernel
from shmring.dtypes import DTYPE_CODES, DTYPES, op_code, widening


# ---- array_view, outputs ---------------------------------------------------------------------------------------------

def describe(x, writable=False, opaque=False):
    """What the engine is given for ``x``: (address, count, nbytes, dtype, whether it is a copy).

    ``dtype`` is a name of ``dtypes.DTYPES``, or ``"opaque"``. The address of a copy is invalid by now.
    """
    cdef array_t a
    cdef object owner = target_array(x, &a, opaque) if writable else source_array(x, &a, opaque)
    return <uintptr_t> a.data, a.count, a.nbytes, "opaque" if a.dtype < 0 else DTYPES[a.dtype].name, is_copy(owner)


def is_fast(x, writable=False):
    """Whether ``x`` takes the hot path."""
    cdef array_t a
    return fast_array(x, &a, writable)


def read_bytes(x, opaque=False):
    """The elements of ``x`` as bytes, in C order and native byte order, read through its pointer."""
    cdef array_t a
    cdef object _owner = source_array(x, &a, opaque)
    return PyBytes_FromStringAndSize(<char *> a.data, a.nbytes) if a.nbytes else b""


def write_bytes(x, bytes content, opaque=False):
    """Overwrite the elements of ``x`` through its pointer; ``content`` is laid out as `read_bytes` returns it."""
    cdef array_t a
    cdef object owner = target_array(x, &a, opaque)
    assert a.nbytes == <size_t> PyBytes_GET_SIZE(content)
    if a.nbytes:
        memcpy(a.data, PyBytes_AS_STRING(content), a.nbytes)
    copy_back(owner)


def new_like(x, shape):
    """A new output like ``x``."""
    return empty_like_array(x, tuple(shape))


def shape(x):
    """The shape of ``x``."""
    return shape_of(x)


def nanoseconds(x, Py_ssize_t loops=100_000, writable=True):
    """Mean time in ns from an array to its pointer and back, called from C as the engine does."""
    cdef array_t a
    cdef bint target = writable
    cdef object owner
    cdef Py_ssize_t _i
    begin = time.perf_counter_ns()
    for _i in range(loops):
        if not fast_array(x, &a, target):
            owner = target_array(x, &a, False) if target else source_array(x, &a, False)
            copy_back(owner)
    return (time.perf_counter_ns() - begin) / loops


# ---- reduce ----------------------------------------------------------------------------------------------------------

cdef enum:
    MAX_SOURCES = 512


@contextmanager
def using(kernel):
    """Kernels of this instruction set; None: of the chosen one."""
    chosen = kernels()["chosen"]
    use_kernel(kernel or chosen)
    yield
    use_kernel(chosen)


def reduce_arrays(sources, op, out=None, *, also=None, kernel=None, stores="ordinary"):
    """Reduce arrays element by element, in the order given.

    Parameters
    ----------
    sources : sequence of ndarray
        C-contiguous, equal in shape and dtype.
    op : str
        One of ``shmring.dtypes.OPS``.
    out : ndarray, optional
        May be one of the sources, else must not overlap them. None: a new array.
    also : ndarray, optional
        A second destination of the same result; may be one of the sources, not ``out``.
    kernel : str, optional
        Instruction set, see `kernels`. None: the chosen one.
    stores : str or (str, str), optional
        How the destinations are written: both, or ``out`` and ``also``.

    Returns
    -------
    ndarray
        ``out``, or the new array.
    """
    cdef fold_t f
    cdef uintptr_t src, dst, second = 0
    cdef size_t count
    cdef int nsrc, dst_stores, also_stores
    dst_stores, also_stores = map(stores_named, [stores] * 2 if isinstance(stores, str) else stores)
    first, *others = sources
    result = np.empty(first.shape, first.dtype) if out is None else out
    for x in (first, *others, result, *([] if also is None else [also])):
        assert x.flags.c_contiguous and (x.shape, x.dtype) == (first.shape, first.dtype)
    cdef int code = op_code(op), dtype = DTYPE_CODES[first.dtype.name]
    with using(kernel):
        f = whole_fold(find_kernel(code, dtype), first.itemsize)
    if f.kernel == NULL:
        raise TypeError(f"op {op!r} is not defined on {first.dtype.name}")
    addresses = np.array([x.ctypes.data for x in sources], np.uintp)
    src, dst, nsrc, count = addresses.ctypes.data, result.ctypes.data, len(sources), first.size
    if also is not None:
        second = also.ctypes.data
    with nogil:
        reduce_into(&f, <void *> dst, <void *> second, <const void **> src, nsrc, count, dst_stores, also_stores)
    return result


def reduce_part(sources, op, *, prefix=None, total=None, kernel=None, stores="ordinary"):
    """Make one part of a reduction, as the engine does where it goes from domain to domain.

    Parameters
    ----------
    sources, op, kernel
        As in `reduce_arrays`.
    prefix : ndarray, optional
        The result of the part before. None: this is the first.
    total : int, optional
        How many operands all parts have; this is the last. None: it is not.
    stores : str, optional
        The kind of stores.

    Returns
    -------
    ndarray
        The result, or a prefix for the next part: of float32 where 16-bit floats are summed.
    """
    cdef array_t a
    cdef const void *src[MAX_SOURCES]
    cdef int nsrc = 0
    cdef int kind = stores_named(stores)
    cdef const carrier_t *carrier
    cdef fold_t f
    first = np.asarray(sources[0])
    cdef int code = op_code(op), dtype = DTYPE_CODES[first.dtype.name]
    form = np.dtype("float32") if widening(code, dtype) > 1 else first.dtype
    with using(kernel):
        f, carrier = whole_fold(find_kernel(code, dtype), first.itemsize), find_carrier(code, dtype)
    operands = [*([] if prefix is None else [prefix]), *sources]
    assert len(operands) <= MAX_SOURCES
    for operand in operands:
        assert source_array(operand, &a, False) is operand and operand.shape == first.shape
        src[nsrc] = a.data
        nsrc += 1
    if prefix is not None:
        assert prefix.dtype == form
        f.first_itemsize = prefix.itemsize
    if total is None:
        f.dst_itemsize = form.itemsize
        if carrier != NULL:
            f.kernel = carrier.opens if prefix is None else carrier.carries
    elif carrier != NULL and prefix is not None:
        f.kernel, f.closes, f.total = NULL, carrier.closes, total
    result = np.empty(first.shape, form if total is None else first.dtype)
    assert target_array(result, &a, False) is result
    with nogil:
        reduce_into(&f, a.data, NULL, src, nsrc, a.count, kind, SHMRING_ORDINARY)
    return result


def copy_array(dst, src, *, stores="ordinary"):
    """Copy ``src`` to ``dst``, of the same size and not overlapping, as the engine does."""
    cdef array_t to, source
    cdef int kind = stores_named(stores)
    assert fast_array(dst, &to, True) and fast_array(src, &source, False) and to.nbytes == source.nbytes
    with nogil:
        copy_bytes(to.data, source.data, to.nbytes, kind)
