"""Any array in main memory -> pointer, count and dtype, with nothing copied where that is possible.

The ways in, in the order tried (docs/arrays.md has their cost):

1. a plain ndarray, C-contiguous, aligned, native: the macros of NumPy's C API;
2. any other ndarray; 3. DLPack's C exchange table (torch); 4. the buffer protocol; 5. ``__dlpack__``.

Whatever does not lie dense, aligned and in native byte order is seen as an ndarray over the same memory and copied
through NumPy, from every framework alike; a `Temporary` remembers where a target's copy has to go back to.
"""

import sys
import time

import numpy as np

from cpython.buffer cimport Py_buffer, PyBuffer_IsContiguous, PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.ref cimport Py_INCREF, PyTypeObject
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

cimport numpy as cnp

from shmring.arrays.dlpack cimport (
    SHMRING_DL_BFLOAT,
    SHMRING_DL_BOOL,
    SHMRING_DL_COMPLEX,
    SHMRING_DL_FLOAT,
    SHMRING_DL_HANDLE,
    SHMRING_DL_INT,
    SHMRING_DL_UINT,
    DLTensor,
    Producer,
    borrow_tensor,
    is_dense,
    new_tensor,
    producer_of,
)

from shmring.dtypes import DTYPE_CODES, DTYPES

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    # As NumPy has them: both steal the reference to `descr`.
    PyTypeObject PyArray_Type
    object PyArray_Empty(int nd, cnp.npy_intp *dims, cnp.dtype descr, int fortran)
    object PyArray_NewFromDescr(PyTypeObject *cls, cnp.dtype descr, int nd, cnp.npy_intp *dims, cnp.npy_intp *strides,
                                void *data, int flags, void *obj)

cdef enum:
    NUMS = 24           # NumPy's built-in type numbers; user-defined ones start at 256
    CODES = 32
    NDIM_MAX = 64       # of NumPy 2, of torch

cdef int BFLOAT16 = DTYPE_CODES["bfloat16"]
cdef int N_CODES = len(DTYPES)
cdef int[NUMS] code_of_num          # -1: not one of ours
cdef int[CODES] itemsize_of
cdef int[CODES] alignment_of
cdef char[CODES] family_of
cdef char NATIVE = c"<" if sys.byteorder == "little" else c">"
cdef int bfloat16_num = -2          # ml_dtypes' type number, once one has been seen; nothing here imports it
cdef list descr_of = []             # what ndarrays over raw memory say they hold; bfloat16 poses as uint16


cdef int _fill_tables() except -1:
    cdef int code, num
    cdef cnp.dtype descr
    for code, known in enumerate(DTYPES):
        itemsize_of[code] = known.itemsize
        family_of[code] = ord(known.family)
        descr_of.append(np.dtype(np.uint16 if code == BFLOAT16 else known.name))
        alignment_of[code] = descr_of[code].alignment
    for num in range(NUMS):
        # By kind and size, not by name: int64 is both NPY_LONG and NPY_LONGLONG.
        descr = cnp.PyArray_DescrFromType(num)
        code_of_num[num] = _code_for(ord(descr.kind), descr.itemsize)
    return 0


cdef int _code_for(int family, Py_ssize_t itemsize) noexcept:
    """The dtype of that family and size (bfloat16 is told apart by the callers); -1 if there is none."""
    cdef int code
    for code in range(N_CODES):
        if family_of[code] == family and itemsize_of[code] == itemsize and code != BFLOAT16:
            return code
    return -1


_fill_tables()


cdef class Temporary:
    """A dense copy of an array that cannot be used as it lies."""
    cdef cnp.ndarray content
    cdef cnp.ndarray home       # where `content` goes back to; None: it was only read


cdef bint is_copy(object keeper) noexcept:
    """Whether ``keeper`` holds a copy, so that what happens to the array meanwhile is not seen through it."""
    return type(keeper) is Temporary


# ---- the hot path ----------------------------------------------------------------------------------------------------

cdef bint fast_array(object x, array_t *a, bint writable) noexcept:
    """Whether ``x`` is a plain ndarray, usable as it lies; then ``a`` is filled and ``x`` keeps the memory alive."""
    if not cnp.PyArray_CheckExact(x):
        return False
    cdef cnp.ndarray array = <cnp.ndarray>x
    cdef int num = cnp.PyArray_TYPE(array)
    cdef int code = -1
    if 0 <= num < NUMS:
        code = code_of_num[num]
    elif num == bfloat16_num:
        code = BFLOAT16
    if code < 0 or not (cnp.PyArray_ISCARRAY(array) if writable else cnp.PyArray_ISCARRAY_RO(array)):
        return False
    cdef size_t count = 1
    cdef int d
    for d in range(cnp.PyArray_NDIM(array)):
        count *= <size_t>cnp.PyArray_DIMS(array)[d]
    _fill(a, cnp.PyArray_DATA(array), count, code, itemsize_of[code])
    return True


cdef inline void _fill(array_t *a, void *data, size_t count, int dtype, int itemsize) noexcept:
    a.data = data
    a.count = count
    a.nbytes = count * <size_t>itemsize
    a.dtype = dtype
    a.itemsize = itemsize


# ---- everything else -------------------------------------------------------------------------------------------------

cdef object source_array(object x, array_t *a, bint opaque=False):
    """Fill ``a`` with the content of ``x``, to be read; return what keeps ``a.data`` alive.

    With ``opaque``, element types outside ``dtypes.DTYPES`` come as bytes with ``a.dtype`` -1: any of fixed size that
    is plain data (structures, float8, long double), since moving needs no arithmetic.
    """
    return x if fast_array(x, a, False) else _open(x, a, False, opaque)


cdef object target_array(object x, array_t *a, bint opaque=False):
    """Fill ``a`` with memory for ``x``, to be read and written; return the keeper, to be given back when done."""
    return x if fast_array(x, a, True) else _open(x, a, True, opaque)


cdef int give_back(object keeper) except -1:
    """Copy what was written into a `Temporary` to where it belongs; nothing to do for any other keeper."""
    cdef Temporary temporary
    if is_copy(keeper):
        temporary = <Temporary>keeper
        if temporary.home is not None:
            cnp.PyArray_CopyInto(temporary.home, temporary.content)
    return 0


cdef object _open(object x, array_t *a, bint writable, bint opaque):
    cdef Producer producer
    cdef DLTensor tensor
    cdef object keeper
    cdef int dtype

    if cnp.PyArray_Check(x):
        return _open_ndarray(x, <cnp.ndarray>x, _code_of_ndarray(x, opaque), a, writable)

    producer = producer_of(x)
    if producer.api == NULL and PyObject_CheckBuffer(x):
        keeper = _open_buffer(x, a, writable, opaque)
        if keeper is not None:
            return keeper
    if not producer.lends:
        raise _not_an_array(x)
    keeper = borrow_tensor(x, producer, &tensor, writable)
    dtype = _code_of_tensor(x, &tensor, opaque)
    if is_dense(&tensor) and (dtype < 0 or <uintptr_t>tensor.data % <uintptr_t>alignment_of[dtype] == 0):
        _fill(a, tensor.data, _count(&tensor), dtype, (tensor.dtype.bits + 7) // 8)
        return keeper
    return _open_ndarray(x, _view_of_tensor(&tensor, dtype, keeper), dtype, a, writable)


cdef object _open_ndarray(object x, cnp.ndarray array, int dtype, array_t *a, bint writable):
    """The end of all ways that have an ndarray over the memory of ``x``: as it lies, or by a dense copy."""
    cdef Temporary temporary
    cdef cnp.dtype descr = array.descr
    if writable and not cnp.PyArray_ISWRITEABLE(array):
        raise TypeError(f"{_name(x)} is read-only: pass a writable out, or a copy of it")
    if cnp.PyArray_ISCARRAY_RO(array) or array.size == 0:
        _fill(a, cnp.PyArray_DATA(array), array.size, dtype, descr.itemsize)
        return array
    if writable and _overlaps_itself(array):
        raise ValueError(f"elements of {_name(x)} share memory (strides in bytes: {(<object>array).strides}), "
                         "so writing one writes another: pass a copy of it")
    temporary = Temporary.__new__(Temporary)
    temporary.content = _empty(cnp.PyArray_NDIM(array), cnp.PyArray_DIMS(array), _native(descr))
    temporary.home = array if writable else None
    cnp.PyArray_CopyInto(temporary.content, array)
    _fill(a, cnp.PyArray_DATA(temporary.content), array.size, dtype, descr.itemsize)
    return temporary


cdef object _open_buffer(object x, array_t *a, bint writable, bint opaque):
    """By the buffer protocol; None if ``x`` refuses there but may lend by DLPack. A memoryview is the keeper: while
    it lives, a bytearray or mmap cannot be resized under us."""
    cdef object view
    cdef Py_buffer *buffer
    cdef int dtype
    if isinstance(x, np.generic):
        if writable:
            raise TypeError(f"a NumPy scalar ({type(x).__name__}) cannot be written: pass a 0-d array, np.array(x)")
        view = np.asarray(x)
        return _open_ndarray(view, view, _code_of_ndarray(view, opaque), a, False)
    try:
        view = PyMemoryView_FromObject(x)
    except BufferError as error:
        if hasattr(type(x), "__dlpack__"):
            return None
        raise TypeError(f"{_name(x)} cannot lend its memory: {error}") from error
    buffer = PyMemoryView_GET_BUFFER(view)
    dtype = _code_of_buffer(buffer)
    if dtype < 0 or not PyBuffer_IsContiguous(buffer, b"C") or <uintptr_t>buffer.buf % alignment_of[dtype]:
        view = np.asarray(view)     # NumPy reads every format, stride and byte order
        return _open_ndarray(x, view, _code_of_ndarray(view, opaque), a, writable)
    if writable and buffer.readonly:
        raise TypeError(f"{_name(x)} is read-only: pass a writable out, or a copy of it")
    _fill(a, buffer.buf, buffer.len // buffer.itemsize, dtype, buffer.itemsize)
    return view


# ---- element types ---------------------------------------------------------------------------------------------------

cdef int _code_of_ndarray(object x, bint opaque) except -2:
    global bfloat16_num
    cdef cnp.ndarray array = x
    cdef cnp.dtype descr = array.descr
    cdef int num = cnp.PyArray_TYPE(array)
    if not cnp.PyArray_CheckExact(x) and _is_masked(x):
        raise TypeError(f"{_name(x)} is masked: pass x.data to ignore the mask, or x.filled(value)")
    if 0 <= num < NUMS and code_of_num[num] >= 0:
        return code_of_num[num]
    if descr.name == "bfloat16" and descr.itemsize == 2:
        if num >= NUMS:         # dtypes of NumPy's newer kind all have the number -1
            bfloat16_num = num
        return BFLOAT16
    # Plain data only: no references to objects; no strings and dates, whose width and unit the bytes do not tell.
    if opaque and descr.kind in "fcV" and not descr.hasobject and descr.itemsize > 0:
        return -1
    raise _unknown_dtype(x, descr, opaque)


cdef int _code_of_tensor(object x, const DLTensor *t, bint opaque) except -2:
    cdef int family = 0
    cdef int dtype
    if t.dtype.lanes == 1 and t.dtype.bits % 8 == 0 and t.dtype.bits > 0 and t.dtype.code != SHMRING_DL_HANDLE:
        if t.dtype.code == SHMRING_DL_BFLOAT and t.dtype.bits == 16:
            return BFLOAT16
        if t.dtype.code == SHMRING_DL_INT:
            family = c"i"
        elif t.dtype.code == SHMRING_DL_UINT:
            family = c"u"
        elif t.dtype.code == SHMRING_DL_FLOAT:
            family = c"f"
        elif t.dtype.code == SHMRING_DL_COMPLEX:
            family = c"c"
        elif t.dtype.code == SHMRING_DL_BOOL:
            family = c"b"
        dtype = _code_for(family, t.dtype.bits // 8)
        if dtype >= 0 or opaque:
            return dtype
    raise _unknown_dtype(x, getattr(x, "dtype", f"DLPack type {t.dtype.code}, {t.dtype.bits} bits"), opaque)


cdef int _code_of_buffer(const Py_buffer *buffer) noexcept:
    """The dtype of a native one-letter format; -1 for anything else, which NumPy is then asked about."""
    cdef const char *format = buffer.format
    cdef int family
    if format == NULL:
        return _code_for(c"u", 1)       # by the protocol's definition
    if format[0] == c"@" or format[0] == c"=" or format[0] == NATIVE:
        format += 1
    if format[0] == c"Z" and format[1] != 0 and format[2] == 0:
        family = c"c"
    elif format[0] == 0 or format[1] != 0:
        return -1
    elif format[0] in b"bhilqn":
        family = c"i"       # the size tells which: "l" has 8 bytes, "=l" has 4
    elif format[0] in b"BHILQN":
        family = c"u"
    elif format[0] in b"efd":
        family = c"f"
    elif format[0] == c"?":
        family = c"b"
    else:
        return -1
    return _code_for(family, buffer.itemsize)


# ---- shapes and strides ----------------------------------------------------------------------------------------------

cdef size_t _count(const DLTensor *t) noexcept:
    cdef size_t count = 1
    cdef int d
    for d in range(t.ndim):
        count *= <size_t>t.shape[d]
    return count


cdef cnp.ndarray _view_of_tensor(const DLTensor *t, int dtype, object keeper):
    """An ndarray over the memory of ``t``, of the same element size; it keeps ``keeper`` alive."""
    cdef cnp.npy_intp[NDIM_MAX] dims
    cdef cnp.npy_intp[NDIM_MAX] strides
    cdef cnp.npy_intp dense = (t.dtype.bits + 7) // 8
    cdef cnp.npy_intp itemsize = dense
    cdef cnp.dtype descr = np.dtype((np.void, itemsize)) if dtype < 0 else descr_of[dtype]
    cdef int d
    if t.ndim > NDIM_MAX:
        raise ValueError(f"{t.ndim} dimensions; at most {NDIM_MAX} are possible")
    for d in range(t.ndim - 1, -1, -1):
        dims[d] = t.shape[d]
        strides[d] = dense if t.strides == NULL else t.strides[d] * itemsize
        dense *= t.shape[d]
    Py_INCREF(descr)
    cdef cnp.ndarray view = PyArray_NewFromDescr(&PyArray_Type, descr, t.ndim, dims, strides, t.data,
                                                 cnp.NPY_ARRAY_WRITEABLE, NULL)
    cnp.set_array_base(view, keeper)
    return view


cdef cnp.ndarray _empty(int ndim, cnp.npy_intp *dims, cnp.dtype descr):
    Py_INCREF(descr)
    return PyArray_Empty(ndim, dims, descr, 0)


cdef cnp.dtype _native(cnp.dtype descr):
    return descr if descr.isnative else descr.newbyteorder("=")


cdef bint _overlaps_itself(cnp.ndarray array) except -1:
    """Whether two elements share bytes, so that writing one writes the other. Exact."""
    cdef cnp.npy_intp[NDIM_MAX] steps       # of the axes that have any, finest first
    cdef cnp.npy_intp[NDIM_MAX] counts
    cdef cnp.npy_intp span = array.descr.itemsize
    cdef cnp.npy_intp step
    cdef int axes = 0
    cdef int d, i
    for d in range(cnp.PyArray_NDIM(array)):
        if cnp.PyArray_DIMS(array)[d] < 2:
            continue
        step = abs(cnp.PyArray_STRIDES(array)[d])
        if step == 0:
            return True
        i = axes
        while i > 0 and steps[i - 1] > step:
            steps[i], counts[i] = steps[i - 1], counts[i - 1]
            i -= 1
        steps[i], counts[i] = step, cnp.PyArray_DIMS(array)[d]
        axes += 1
    for d in range(axes):
        if steps[d] < span:
            return _elements_collide([(steps[i], counts[i]) for i in range(axes)], array.descr.itemsize)
        span += steps[d] * (counts[d] - 1)
    return False        # each axis steps over all that the finer ones span


def _elements_collide(axes, itemsize):
    # Interleaved axes, from stride tricks only: they may still miss each other, so look at where each element lies.
    offsets = np.zeros(1, np.int64)
    for step, count in axes:
        offsets = np.add.outer(offsets, step * np.arange(count)).ravel()
    offsets.sort()
    return bool((np.diff(offsets) < itemsize).any())


# ---- outputs ---------------------------------------------------------------------------------------------------------

cdef object empty_like_array(object x, tuple shape):
    """A new, uninitialised output of the dtype of ``x`` and of its framework, if that has DLPack's exchange table
    (torch); else an ndarray."""
    cdef Producer producer
    cdef DLTensor tensor
    cdef int64_t[NDIM_MAX] dims64
    cdef cnp.npy_intp[NDIM_MAX] dims
    cdef cnp.dtype descr
    cdef object _keeper
    cdef int d, dtype
    if len(shape) > NDIM_MAX:
        raise ValueError(f"{len(shape)} dimensions; at most {NDIM_MAX} are possible")
    for d, n in enumerate(shape):
        if n < 0:
            raise ValueError(f"shape {shape} has a negative extent")
        dims[d] = dims64[d] = n

    if cnp.PyArray_Check(x):
        descr = (<cnp.ndarray>x).descr
        return _empty(len(shape), dims, _native(descr))
    producer = producer_of(x)
    if producer.api != NULL:
        _keeper = borrow_tensor(x, producer, &tensor, False)
        tensor.data = NULL
        tensor.ndim = len(shape)
        tensor.shape = dims64
        tensor.strides = NULL
        return new_tensor(producer, &tensor)
    descr = getattr(x, "dtype", None) if isinstance(getattr(x, "dtype", None), np.dtype) else None
    if descr is None and PyObject_CheckBuffer(x):
        descr = np.asarray(PyMemoryView_FromObject(x)).dtype
    elif descr is None and producer.lends:
        _keeper = borrow_tensor(x, producer, &tensor, False)
        dtype = _code_of_tensor(x, &tensor, False)
        if dtype == BFLOAT16:
            raise TypeError(f"NumPy has no bfloat16 for an output like {_name(x)}: pass out=")
        descr = descr_of[dtype]
    elif descr is None:
        raise _not_an_array(x)
    return _empty(len(shape), dims, _native(descr))


cdef tuple shape_of(object x):
    """The shape of ``x`` as a tuple of int."""
    cdef Producer producer
    cdef DLTensor tensor
    cdef object _keeper
    cdef int d
    if cnp.PyArray_Check(x):
        return (<object>x).shape
    producer = producer_of(x)
    if producer.api == NULL and PyObject_CheckBuffer(x):
        try:
            return x.shape if isinstance(x, np.generic) else PyMemoryView_FromObject(x).shape
        except BufferError:
            if not producer.lends:
                raise
    if not producer.lends:
        raise _not_an_array(x)
    _keeper = borrow_tensor(x, producer, &tensor, False)     # tensor.shape lies in it
    return tuple([tensor.shape[d] for d in range(tensor.ndim)])


cdef int check_overlap(array_t *x, array_t *out, size_t place) except -1:
    """``x`` may be ``out`` exactly ``place`` bytes in (the in-place form); any other overlap would read what was
    already overwritten."""
    cdef char *a = <char *> x.data
    cdef char *b = <char *> out.data
    if a + x.nbytes <= b or b + out.nbytes <= a or a == b + place or b == a + place:
        return 0
    raise ValueError("x and out overlap in part; use the same array for both, or arrays apart")


# ---- refusals --------------------------------------------------------------------------------------------------------

def _name(x):
    dtype = f" of dtype {x.dtype}" if hasattr(x, "dtype") else ""
    shape = f" and shape {tuple(x.shape)}" if dtype and hasattr(x, "shape") else ""
    return f"{type(x).__module__}.{type(x).__qualname__}{dtype}{shape}".removeprefix("builtins.")


def _is_masked(x):
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(x, masked.MaskedArray)


def _not_an_array(x):
    return TypeError(f"{_name(x)} is not an array: pass np.asarray(x, dtype=...), or anything with the buffer protocol "
                     "or DLPack")


def _unknown_dtype(x, dtype, opaque):
    if opaque:
        return TypeError(f"{_name(x)}: elements of dtype {dtype} cannot be moved as plain bytes")
    return TypeError(f"{_name(x)}: dtype {dtype} is not one of {', '.join(DTYPE_CODES)}; convert it first")


# ---- for tests and benchmarks ----------------------------------------------------------------------------------------

def describe(x, writable=False, opaque=False):
    """What the engine would be told about ``x``.

    Parameters
    ----------
    x : array
        See ``docs/arrays.md``.
    writable : bool
        As a target, not only a source.
    opaque : bool
        Whether element types without arithmetic are allowed.

    Returns
    -------
    (address, count, nbytes, dtype, is_copy) : tuple of (int, int, int, str, bool)
        ``dtype`` is a name of ``dtypes.DTYPES``, or ``"opaque"``. The address of a copy is not valid any more.
    """
    cdef array_t a
    cdef object keeper = target_array(x, &a, opaque) if writable else source_array(x, &a, opaque)
    return (<uintptr_t>a.data, a.count, a.nbytes, "opaque" if a.dtype < 0 else DTYPES[a.dtype].name,
            type(keeper) is Temporary)


def is_fast(x, writable=False):
    """Whether ``x`` takes the hot path."""
    cdef array_t a
    return fast_array(x, &a, writable)


def read_bytes(x, opaque=False):
    """The elements of ``x`` as bytes, in C order and native byte order, read through its pointer."""
    cdef array_t a
    cdef object _keeper = source_array(x, &a, opaque)
    return PyBytes_FromStringAndSize(<char *>a.data, a.nbytes) if a.nbytes else b""


def write_bytes(x, bytes content, opaque=False):
    """Overwrite the elements of ``x`` through its pointer; ``content`` is laid out as `read_bytes` returns it."""
    cdef array_t a
    cdef object keeper = target_array(x, &a, opaque)
    if a.nbytes != <size_t>PyBytes_GET_SIZE(content):
        raise ValueError(f"{len(content)} bytes for an array of {a.nbytes}")
    if a.nbytes:
        memcpy(a.data, PyBytes_AS_STRING(content), a.nbytes)
    give_back(keeper)


def new_like(x, shape):
    """A new output like ``x``: `empty_like_array`."""
    return empty_like_array(x, tuple(shape))


def shape(x):
    """The shape of ``x``: `shape_of`."""
    return shape_of(x)


def nanoseconds(x, Py_ssize_t loops=100_000, writable=True):
    """Mean time in ns of one way in and back, called from C as the engine does (``bench/bench_arrays.py``)."""
    cdef array_t a
    cdef bint target = writable
    cdef object keeper
    cdef Py_ssize_t _i
    begin = time.perf_counter_ns()
    for _i in range(loops):
        if not fast_array(x, &a, target):
            keeper = target_array(x, &a) if target else source_array(x, &a)
            give_back(keeper)
    return (time.perf_counter_ns() - begin) / loops
