"""Outputs of calls: the shape of the input, a new array like it, and whether two arrays overlap."""

import numpy as np

from cpython.buffer cimport PyObject_CheckBuffer
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t

from shmring.core.arrays cimport numpy_api as cnp
from shmring.core.arrays.array_view cimport NDIM_MAX, code_of_tensor, descr_of, empty_ndarray
from shmring.core.arrays.dlpack cimport DLTensor, Exporter, borrow_tensor, exporter_of, new_tensor

from shmring.core.arrays.refusals import name_of, not_an_array
from shmring.dtypes import DTYPES

cnp.import_array()


cdef object empty_like_array(object x, tuple shape):
    """A new, uninitialised array of the dtype of ``x``: of its framework, if that has DLPack's exchange table (torch),
    else an ndarray."""
    cdef Exporter exporter
    cdef DLTensor tensor
    cdef int64_t[NDIM_MAX] dims64
    cdef Py_ssize_t[NDIM_MAX] dims
    cdef cnp.dtype descr
    cdef object _owner
    cdef int d, dtype
    if len(shape) > NDIM_MAX:
        raise ValueError(f"an array of {len(shape)} dimensions: at most {NDIM_MAX} are supported")
    for d, n in enumerate(shape):
        if n < 0:
            raise ValueError(f"shape {shape} has a negative extent")
        dims[d] = dims64[d] = n

    if cnp.PyArray_Check(x):
        descr = (<cnp.ndarray>x).descr
        return empty_ndarray(len(shape), dims, descr)
    exporter = exporter_of(x)
    if exporter.api != NULL:
        _owner = borrow_tensor(x, exporter, &tensor, False)
        tensor.data = NULL
        tensor.ndim = len(shape)
        tensor.shape = dims64
        tensor.strides = NULL
        return new_tensor(exporter, &tensor)
    descr = getattr(x, "dtype", None) if isinstance(getattr(x, "dtype", None), np.dtype) else None
    if descr is None and PyObject_CheckBuffer(x):
        descr = np.asarray(PyMemoryView_FromObject(x)).dtype
    elif descr is None and exporter.exports:
        _owner = borrow_tensor(x, exporter, &tensor, False)
        dtype = code_of_tensor(x, &tensor, False)
        if DTYPES[dtype].is_extension:
            raise TypeError(f"NumPy has no {DTYPES[dtype].name} for an output like {name_of(x)}: pass out=")
        descr = descr_of[dtype]
    elif descr is None:
        raise not_an_array(x)
    return empty_ndarray(len(shape), dims, descr)


cdef tuple shape_of(object x):
    """The shape of ``x`` as a tuple of int."""
    cdef Exporter exporter
    cdef DLTensor tensor
    cdef object _owner
    cdef int d
    if cnp.PyArray_Check(x):
        return (<object>x).shape
    exporter = exporter_of(x)
    if exporter.api == NULL and PyObject_CheckBuffer(x):
        try:
            return x.shape if isinstance(x, np.generic) else PyMemoryView_FromObject(x).shape
        except BufferError:
            if not exporter.exports:
                raise
    if not exporter.exports:
        raise not_an_array(x)
    _owner = borrow_tensor(x, exporter, &tensor, False)     # tensor.shape points into it
    return tuple([tensor.shape[d] for d in range(tensor.ndim)])
