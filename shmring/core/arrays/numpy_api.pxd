# The part of NumPy's C API that shmring uses. NumPy's own .pxd adds twelve types and fifty functions to each module.
# A module calls `import_array` before anything else.

from cpython.ref cimport Py_INCREF

cdef extern from "numpy/arrayobject.h":
    ctypedef Py_ssize_t npy_intp
    ctypedef struct PyArray_Descr:
        pass

    ctypedef class numpy.dtype [object PyArray_Descr, check_size ignore]:
        @property
        cdef inline npy_intp itemsize(self) noexcept nogil:
            return PyDataType_ELSIZE(self)

    ctypedef class numpy.ndarray [object PyArrayObject, check_size ignore]:
        @property
        cdef inline dtype descr(self):
            return <dtype>PyArray_DESCR(self)

        @property
        cdef inline npy_intp size(self) noexcept nogil:
            return PyArray_SIZE(self)

    const int NPY_ARRAY_C_CONTIGUOUS
    const int NPY_ARRAY_ALIGNED
    const int NPY_ARRAY_WRITEABLE

    int import_array "_import_array"() except -1
    bint PyArray_Check(object x)
    bint PyArray_CheckExact(object x)
    bint PyArray_ISCARRAY(ndarray array) nogil
    bint PyArray_ISCARRAY_RO(ndarray array) nogil
    bint PyArray_ISWRITEABLE(ndarray array) nogil
    bint PyArray_IS_C_CONTIGUOUS(ndarray array) nogil
    bint PyTypeNum_ISBOOL(int number) nogil
    bint PyTypeNum_ISNUMBER(int number) nogil
    bint PyTypeNum_ISUSERDEF(int number) nogil
    int PyArray_TYPE(ndarray array) nogil
    int PyArray_NDIM(ndarray array) nogil
    npy_intp *PyArray_DIMS(ndarray array) nogil
    npy_intp *PyArray_STRIDES(ndarray array) nogil
    npy_intp PyArray_SIZE(ndarray array) nogil
    npy_intp PyArray_NBYTES(ndarray array) nogil
    void *PyArray_DATA(ndarray array) nogil
    PyArray_Descr *PyArray_DESCR(ndarray array) nogil    # borrowed
    npy_intp PyDataType_ELSIZE(dtype descr) nogil
    dtype PyArray_DescrFromType(int number)
    int PyArray_CopyInto(ndarray to, ndarray source) except -1
    void PyArray_UpdateFlags(ndarray array, int flags)
    int PyArray_SetBaseObject(ndarray array, object base) except -1    # steals the reference to `base`


cdef inline int set_array_base(ndarray array, object base) except -1:
    """Let an array keep the owner of its memory."""
    Py_INCREF(base)
    return PyArray_SetBaseObject(array, base)
