"""Any array as bytes, for a wire between nodes; and reductions of bytes by the kernels of the core.

Results have the bits of a collective on one machine: the same kernels, in parts.
"""

import numpy as np

from cpython.mem cimport PyMem_Free, PyMem_Malloc

from shmring._c.layout cimport SHMRING_ORDINARY
from shmring.arrays cimport numpy_api as cnp
from shmring.arrays.array_view cimport array_t, copy_back, source_array, target_array
from shmring.arrays.outputs cimport OVERLAP, empty_like_array, overlaps, shape_of
from shmring.arrays.reduce cimport carrier_t, find_carrier, find_kernel, fold_t, reduce_into

from shmring.dtypes import DTYPES, OPS, is_defined, op_code, widening

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_SimpleNewFromData(int nd, cnp.npy_intp *dims, int typenum, void *data)
    enum:
        NPY_UINT8


cdef class Flat:
    """An array as contiguous bytes: its own memory, or a copy where that is not contiguous.

    Attributes
    ----------
    data : ndarray of uint8
        Keeps the memory.
    count, itemsize : int
    code : int
        Position in `dtypes.DTYPES`, -1 for other plain data.
    """
    cdef readonly object data
    cdef readonly size_t count
    cdef readonly int itemsize
    cdef readonly int code
    cdef object owner

    @property
    def dtype(self):
        """The name of the dtype."""
        return DTYPES[self.code].name if self.code >= 0 else f"{self.itemsize} bytes"

    def copy_back(self):
        """Copy what was written into a copy back to the array."""
        copy_back(self.owner)


cdef Flat _wrap(object owner, array_t *a):
    cdef Flat flat = Flat.__new__(Flat)
    cdef cnp.npy_intp n = a.nbytes
    cdef cnp.ndarray data
    flat.owner, flat.count, flat.itemsize, flat.code = owner, a.count, a.itemsize, a.dtype
    if n == 0:
        flat.data = np.empty(0, np.uint8)
        return flat
    data = PyArray_SimpleNewFromData(1, &n, NPY_UINT8, a.data)
    cnp.set_array_base(data, owner)
    flat.data = data
    return flat


def source(x):
    """An array for reading."""
    cdef array_t a
    cdef object owner = source_array(x, &a, True)
    return _wrap(owner, &a)


def target(x):
    """An array for reading and writing."""
    cdef array_t a
    cdef object owner = target_array(x, &a, True)
    return _wrap(owner, &a)


def empty_like(x, tuple shape):
    """A new array of the dtype and the framework of ``x``."""
    return empty_like_array(x, shape)


def shape(x):
    """The shape of any array."""
    return shape_of(x)


def check_overlap(Flat inner not None, Flat outer not None, size_t place):
    """Raise if two arrays overlap, unless the first one is ``place`` bytes into the second one."""
    cdef array_t a, b
    _view(inner.data, &a)
    _view(outer.data, &b)
    if overlaps(&a, &b, place):
        raise ValueError(OVERLAP)


cdef int _view(object data, array_t *a) except -1:
    source_array(data, a)
    return 0


def starts_alike(Flat a not None, Flat b not None):
    """Whether two arrays have the same address."""
    return cnp.PyArray_DATA(a.data) == cnp.PyArray_DATA(b.data)


def checked_op(str op, int code):
    """The core's name of an operation; raises if it is not defined for this dtype."""
    cdef str name = OPS[op_code(op)]
    if code < 0 or not is_defined(name, DTYPES[code].name):
        raise TypeError(f"op {name!r} is not defined on {DTYPES[code].name if code >= 0 else 'opaque data'}")
    return name


def partial_itemsize(str op, int code):
    """Bytes of an element of a partial result."""
    return DTYPES[code].itemsize * widening(op_code(op), code)


def fold(list sources, str op, int code, out, before=None, int total=0):
    """Reduce arrays of bytes, as elements of a dtype, in the order given.

    Parameters
    ----------
    sources : list of ndarray of uint8
        At least one; all of equal length.
    op : str
        A name returned by `checked_op`.
    code : int
        The position of the dtype in `dtypes.DTYPES`.
    out : ndarray of uint8
        May be ``before``, or one of the sources.
    before : ndarray of uint8, optional
        The partial result of the operands before these.
    total : int, optional
        Number of operands of all parts, if these are the last; 0: ``out`` is a partial result.
    """
    cdef array_t operand, result
    cdef fold_t f
    cdef const carrier_t *carrier
    cdef const void **src
    cdef int n = 0, opcode = op_code(op), itemsize = DTYPES[code].itemsize
    cdef int wide = itemsize * widening(opcode, code)
    cdef size_t count
    target_array(out, &result)
    f.kernel, f.closes, f.total = find_kernel(opcode, code), NULL, total
    f.itemsize = f.first_itemsize = itemsize
    f.dst_itemsize = itemsize if total else wide
    count = result.nbytes // <size_t> f.dst_itemsize
    carrier = find_carrier(opcode, code)
    if carrier != NULL and before is None and total != 0 and total != len(sources):
        # Not the operands themselves, but sums of some: the kernel would take an average of these.
        before = np.empty(count * <size_t> wide, np.uint8)
        fold(sources[:1], op, code, before)
        sources = sources[1:]
    if before is not None:
        f.first_itemsize = wide
    if carrier != NULL and total == 0:
        f.kernel = carrier.opens if before is None else carrier.carries
    elif carrier != NULL and before is not None:
        f.kernel, f.closes = NULL, carrier.closes
    src = <const void **> PyMem_Malloc((len(sources) + 1) * sizeof(void *))
    if src == NULL:
        raise MemoryError
    try:
        if before is not None:
            source_array(before, &operand)
            if operand.nbytes != count * <size_t> wide:
                raise ValueError(f"the partial result has {operand.nbytes} bytes, not {count * wide}")
            src[0] = operand.data
            n = 1
        for x in sources:
            source_array(x, &operand)
            src[n] = operand.data
            n += 1
            if operand.nbytes != count * <size_t> itemsize:
                raise ValueError(f"a source has {operand.nbytes} bytes, not {count * itemsize}")
        with nogil:
            reduce_into(&f, result.data, NULL, src, n, count, SHMRING_ORDINARY, SHMRING_ORDINARY)
    finally:
        PyMem_Free(src)
