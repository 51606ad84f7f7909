"""Any array in main memory -> pointer, count and dtype, copying nothing where that is possible.

The ways in, in the order tried (docs/arrays.md has their cost):

1. a plain ndarray, C-contiguous, aligned, native: the macros of NumPy's C API;
2. any other ndarray; 3. DLPack's C exchange table (torch); 4. the buffer protocol; 5. ``__dlpack__``.

Memory that is not dense, aligned and in native byte order is wrapped in an ndarray and copied through NumPy, for every
framework alike; a `Temporary` records where the copy of a target is copied back to.
"""

import sys

import numpy as np

from cpython.buffer cimport Py_buffer, PyBuffer_IsContiguous, PyObject_CheckBuffer
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.ref cimport Py_INCREF, PyTypeObject
from libc.stdint cimport uintptr_t

from shmring.core.c.atomics cimport add_u32
from shmring.core.arrays cimport numpy_api as cnp
from shmring.core.arrays.dlpack cimport SHMRING_DL_HANDLE, DLTensor, Exporter, borrow_tensor, exporter_of, is_dense
from shmring.core.kernel.numbers cimport NDTYPES, check_rows

from shmring.core.arrays.refusals import name_of, not_an_array, refuse_masked, unknown_dtype
from shmring.dtypes import DTYPE_CODES, DTYPES, OPS

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    # As in NumPy's headers: both steal the reference to `descr`.
    PyTypeObject PyArray_Type
    object PyArray_Empty(int nd, cnp.npy_intp *dims, cnp.dtype descr, int fortran)
    object PyArray_NewFromDescr(PyTypeObject *cls, cnp.dtype descr, int nd, cnp.npy_intp *dims, cnp.npy_intp *strides,
                                void *data, int flags, void *obj)

cdef enum:
    BUILT_IN = 24       # NumPy's own type numbers; those of extensions begin at 256
    NUMS = 320

cdef int[NUMS] code_of_num          # -1: not in dtypes.DTYPES, or of an extension of which no array has been seen
cdef int[NDTYPES] itemsize_of
cdef int[NDTYPES] alignment_of
cdef int[NDTYPES] dlpack_of
cdef char[NDTYPES] family_of        # 0: of an extension, which neither family nor size tells
cdef char NATIVE = c"<" if sys.byteorder == "little" else c">"
descr_of = []                       # NumPy's dtype for ndarrays over raw memory; unsigned integers for extensions


cdef int _fill_tables() except -1:
    cdef int code, num
    cdef cnp.dtype descr
    check_rows(DTYPES, OPS)
    for code, known in enumerate(DTYPES):
        itemsize_of[code] = known.itemsize
        dlpack_of[code] = known.dlpack
        family_of[code] = 0 if known.is_extension else ord(known.family)
        descr_of.append(np.dtype(f"uint{8 * known.itemsize}" if known.is_extension else known.name))
        alignment_of[code] = descr_of[code].alignment
    for num in range(NUMS):
        code_of_num[num] = -1
    for num in range(BUILT_IN):
        # By kind and size, not by name: int64 is both NPY_LONG and NPY_LONGLONG.
        descr = cnp.PyArray_DescrFromType(num)
        code_of_num[num] = _code_for(ord(descr.kind), descr.itemsize)
    return 0


cdef int _code_for(int family, Py_ssize_t itemsize) noexcept:
    """NumPy's own dtype of that family and size; -1 if there is none."""
    cdef int code
    for code in range(NDTYPES):
        if family_of[code] == family and itemsize_of[code] == itemsize:
            return code
    return -1


_fill_tables()


cdef class Temporary:
    """A dense copy of an array that cannot be used in place."""


cdef int copy_home(object temporary) except -1:
    """Copy a `Temporary` back to its array."""
    cdef Temporary t = temporary
    if t.home is not None:
        add_u32(&ncopying, 1)
        try:
            cnp.PyArray_CopyInto(<cnp.ndarray> t.home, <cnp.ndarray> t.content)
        finally:
            add_u32(&ncopying, <uint32_t> -1)
    return 0


# ---- the hot path ----------------------------------------------------------------------------------------------------

cdef bint fast_array(object x, array_t *a, bint writable) noexcept:
    """Whether ``x`` is a plain ndarray, usable in place; then ``a`` is filled and ``x`` owns the memory."""
    if not cnp.PyArray_CheckExact(x):
        return False
    cdef cnp.ndarray array = <cnp.ndarray>x
    cdef int num = cnp.PyArray_TYPE(array)
    cdef int code = -1
    if 0 <= num < NUMS:
        code = code_of_num[num]
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

cdef object open_array(object x, array_t *a, bint writable, bint opaque):
    cdef Exporter exporter
    cdef DLTensor tensor
    cdef object owner
    cdef int dtype

    if cnp.PyArray_Check(x):
        return _open_ndarray(x, <cnp.ndarray>x, _code_of_ndarray(x, opaque), a, writable)

    exporter = exporter_of(x)
    if exporter.api == NULL and PyObject_CheckBuffer(x):
        owner = _open_buffer(x, a, writable, opaque)
        if owner is not None:
            return owner
    if not exporter.exports:
        raise not_an_array(x)
    owner = borrow_tensor(x, exporter, &tensor, writable)
    dtype = code_of_tensor(x, &tensor, opaque)
    if is_dense(&tensor) and (dtype < 0 or <uintptr_t>tensor.data % <uintptr_t>alignment_of[dtype] == 0):
        _fill(a, tensor.data, _count(&tensor), dtype, (tensor.dtype.bits + 7) // 8)
        return owner
    return _open_ndarray(x, _view_of_tensor(&tensor, dtype, owner), dtype, a, writable)


cdef object _open_ndarray(object x, cnp.ndarray array, int dtype, array_t *a, bint writable):
    """Use ``array``, an ndarray over the memory of ``x``: in place, or by a dense copy."""
    cdef Temporary temporary
    cdef cnp.dtype descr = array.descr
    if writable and not cnp.PyArray_ISWRITEABLE(array):
        raise TypeError(f"{name_of(x)} is read-only: pass a writable out, or a copy of it")
    if cnp.PyArray_ISCARRAY_RO(array) or array.size == 0:
        _fill(a, cnp.PyArray_DATA(array), array.size, dtype, descr.itemsize)
        return array
    if writable and _overlaps_itself(array):
        raise ValueError(f"elements of {name_of(x)} share memory (strides in bytes: {(<object>array).strides}), "
                         "so writing one writes another: pass a copy of it")
    temporary = Temporary.__new__(Temporary)
    temporary.content = empty_ndarray(cnp.PyArray_NDIM(array), <Py_ssize_t *> cnp.PyArray_DIMS(array), descr)
    temporary.home = array if writable else None
    cnp.PyArray_CopyInto(<cnp.ndarray> temporary.content, array)
    _fill(a, cnp.PyArray_DATA(<cnp.ndarray> temporary.content), array.size, dtype, descr.itemsize)
    return temporary


cdef object _open_buffer(object x, array_t *a, bint writable, bint opaque):
    """By the buffer protocol; None if ``x`` refuses it but may export by DLPack. The owner is a memoryview: while it
    exists, a bytearray or mmap cannot be resized."""
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
        raise TypeError(f"{name_of(x)} does not export its memory: {error}") from error
    buffer = PyMemoryView_GET_BUFFER(view)
    dtype = _code_of_buffer(buffer)
    if dtype < 0 or not PyBuffer_IsContiguous(buffer, b"C") or <uintptr_t>buffer.buf % alignment_of[dtype]:
        view = np.asarray(view)     # NumPy reads every format, stride and byte order
        return _open_ndarray(x, view, _code_of_ndarray(view, opaque), a, writable)
    if writable and buffer.readonly:
        raise TypeError(f"{name_of(x)} is read-only: pass a writable out, or a copy of it")
    _fill(a, buffer.buf, buffer.len // buffer.itemsize, dtype, buffer.itemsize)
    return view


def memory_of(x):
    """Address, bytes, name of the dtype, elements and owner of the memory of ``x``, which must be usable in place."""
    cdef array_t a
    owner = target_array(x, &a, True)
    if is_copy(owner):
        raise ValueError(f"{name_of(x)} is not C-contiguous, aligned and in native byte order: pass the array of which "
                         "it is a view")
    name = DTYPES[a.dtype].name if a.dtype >= 0 else f"elements of {a.itemsize} bytes"
    return <uintptr_t> a.data, a.nbytes, name, a.count, owner


# ---- element types ---------------------------------------------------------------------------------------------------

cdef int check_no_mask(object x) except -1:
    """Raise for a masked array, which is never of NumPy's own type."""
    if cnp.PyArray_Check(x) and not cnp.PyArray_CheckExact(x):
        refuse_masked(x)
    return 0


cdef object converted(object value, object dtype):
    """A new array of what NumPy converts to a dtype; `ValueError` for a number for which that has no room."""
    try:
        return np.array(value, dtype)
    except OverflowError as error:
        raise ValueError(f"not of {dtype}: {error}") from error


cdef int _code_of_ndarray(object x, bint opaque) except -2:
    cdef cnp.ndarray array = x
    cdef cnp.dtype descr = array.descr
    cdef int num = cnp.PyArray_TYPE(array), code
    check_no_mask(x)
    if 0 <= num < NUMS and code_of_num[num] >= 0:
        return code_of_num[num]
    code = DTYPE_CODES.get(descr.name, -1)
    if code >= 0 and DTYPES[code].is_extension and descr.itemsize == itemsize_of[code]:
        if BUILT_IN <= num < NUMS:      # dtypes of NumPy's newer kind all have the number -1
            code_of_num[num] = code
        return code
    # Plain data only: no references to objects; no strings and dates, whose width and unit are not in the bytes.
    if opaque and descr.kind in "fcV" and not descr.hasobject and descr.itemsize > 0:
        return -1
    raise unknown_dtype(x, descr, opaque)


cdef int code_of_tensor(object x, const DLTensor *t, bint opaque) except -2:
    cdef int code
    if t.dtype.lanes == 1 and t.dtype.bits % 8 == 0 and t.dtype.bits > 0 and t.dtype.code != SHMRING_DL_HANDLE:
        for code in range(NDTYPES):
            if dlpack_of[code] == t.dtype.code and itemsize_of[code] * 8 == t.dtype.bits:
                return code
        if opaque:
            return OPAQUE
    raise unknown_dtype(x, getattr(x, "dtype", f"DLPack type {t.dtype.code}, {t.dtype.bits} bits"), opaque)


cdef int _code_of_buffer(const Py_buffer *buffer) noexcept:
    """The dtype of a native one-letter format; -1 for all others, which NumPy then interprets."""
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
        family = c"i"       # the item size decides: "l" has 8 bytes, "=l" has 4
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


cdef cnp.ndarray _view_of_tensor(const DLTensor *t, int dtype, object owner):
    """An ndarray over the memory of ``t``, of the same element size, with ``owner`` as its base."""
    cdef cnp.npy_intp[NDIM_MAX] dims
    cdef cnp.npy_intp[NDIM_MAX] strides
    cdef cnp.npy_intp dense = (t.dtype.bits + 7) // 8
    cdef cnp.npy_intp itemsize = dense
    cdef cnp.dtype descr = np.dtype((np.void, itemsize)) if dtype < 0 else descr_of[dtype]
    cdef int d
    if t.ndim > NDIM_MAX:
        raise ValueError(f"an array of {t.ndim} dimensions: at most {NDIM_MAX} are supported")
    for d in range(t.ndim - 1, -1, -1):
        dims[d] = t.shape[d]
        strides[d] = dense if t.strides == NULL else t.strides[d] * itemsize
        dense *= t.shape[d]
    Py_INCREF(descr)
    cdef cnp.ndarray view = PyArray_NewFromDescr(&PyArray_Type, descr, t.ndim, dims, strides, t.data,
                                                 cnp.NPY_ARRAY_WRITEABLE, NULL)
    cnp.set_array_base(view, owner)
    return view


cdef object empty_ndarray(int ndim, const Py_ssize_t *dims, object descr):
    cdef cnp.dtype native = descr if descr.isnative else descr.newbyteorder("=")
    Py_INCREF(native)
    return PyArray_Empty(ndim, <cnp.npy_intp *> dims, native, 0)


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
    return False        # each axis steps over the whole span of the finer ones


def _elements_collide(axes, itemsize):
    # Interleaved axes, from stride tricks only, may still be disjoint: compare the offsets of all elements.
    offsets = np.zeros(1, np.int64)
    for step, count in axes:
        offsets = np.add.outer(offsets, step * np.arange(count)).ravel()
    offsets.sort()
    return bool((np.diff(offsets) < itemsize).any())
