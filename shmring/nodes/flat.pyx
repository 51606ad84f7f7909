"""Any array as bytes, for a wire between nodes; and reductions of bytes by the kernels of the core.

Results have the bits of a collective on one machine: the same kernels, in parts.
"""

import numpy as np

from cpython.mem cimport PyMem_Free, PyMem_Malloc

from shmring._c.layout cimport SHMRING_ORDINARY
from shmring.arrays cimport numpy_api as cnp
from shmring.arrays.array_view cimport array_t, copy_back, source_array, target_array
from shmring.arrays.outputs cimport OVERLAP, empty_like_array, overlaps, shape_of
from shmring.kernel.reduce cimport find_carrier, find_kernel, fold_t, reduce_into

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


cdef int set_operation(operation_t *o, str op, int code) except -1:
    """The operation ``op``, a name returned by `checked_op`, on a dtype by its position in `dtypes.DTYPES`."""
    cdef int opcode = op_code(op)
    o.kernel, o.carrier = find_kernel(opcode, code), find_carrier(opcode, code)
    o.itemsize = DTYPES[code].itemsize
    o.wide = o.itemsize * <size_t> widening(opcode, code)
    return 0


cdef int fold(const operation_t *o, void *out, size_t count, const void **src, int n, const void *before,
              int total) except -1:
    """Reduce ``count`` elements of ``n`` sources in their order, from ``src[1]`` on; ``src[0]`` is overwritten.

    ``before`` is the partial result of the operands before these, or NULL. ``total`` is the number of operands of all
    parts if these are the last; 0: ``out`` is a partial result. ``out`` may be ``before``, or one of the sources.
    """
    cdef fold_t f
    cdef void *opened
    if o.carrier != NULL and before == NULL and total != 0 and total != n:
        # These are partial sums: the kernel of `avg` would divide them again.
        opened = PyMem_Malloc(count * o.wide + 1)
        if opened == NULL:
            raise MemoryError
        try:
            fold(o, opened, count, src, 1, NULL, 0)
            return fold(o, out, count, src + 1, n - 1, opened, total)
        finally:
            PyMem_Free(opened)
    f.kernel, f.closes, f.total = o.kernel, NULL, total
    f.itemsize = f.first_itemsize = o.itemsize
    f.dst_itemsize = o.itemsize if total else o.wide
    if before != NULL:
        f.first_itemsize = o.wide
        src[0] = before
    if o.carrier != NULL and total == 0:
        f.kernel = o.carrier.opens if before == NULL else o.carrier.carries
    elif o.carrier != NULL and before != NULL:
        f.kernel, f.closes = NULL, o.carrier.closes
    with nogil:
        reduce_into(&f, out, NULL, src + (before == NULL), n + (before != NULL), count, SHMRING_ORDINARY,
                    SHMRING_ORDINARY)
    return 0
