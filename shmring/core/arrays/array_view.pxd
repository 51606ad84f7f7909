# Any array in main memory -> pointer, count and dtype (core/arrays/array_view.pyx).
#
#     owner = target_array(x, &a, False)  # a.data, a.count, a.nbytes, a.dtype, a.itemsize
#     ... without the interpreter ...     # valid while x and owner exist
#     copy_back(owner)                    # only after success: on failure x stays as it was
#
# Every function raises before it changes anything. `fast_array` needs no owner but x.

from libc.stdint cimport uint32_t

from shmring.core.arrays.dlpack cimport DLTensor


ctypedef struct array_t:
    void *data          # may be NULL if count is 0
    size_t count        # elements
    size_t nbytes
    int dtype           # position in dtypes.DTYPES; -1: opaque bytes, only where the caller allowed them
    int itemsize

cdef enum:
    NDIM_MAX = 64       # of NumPy 2 and of torch
    OPAQUE = -1         # the dtype of opaque bytes

cdef list descr_of      # NumPy's dtype of each of dtypes.DTYPES

cdef bint fast_array(object x, array_t *a, bint writable) noexcept
cdef object open_array(object x, array_t *a, bint writable, bint opaque)
cdef int copy_home(object temporary) except -1
cdef uint32_t ncopying    # threads that are in `copy_back`; NumPy copies without the GIL

# What `source_array` and `target_array` return where they have copied; nothing else returns one.
cdef class Temporary:
    cdef object content         # an ndarray
    cdef object home            # where `content` is copied back to; None for a source


cdef inline bint is_copy(object owner) noexcept:
    """Whether ``owner`` holds a copy, through which later changes of the array are not seen."""
    return type(owner) is Temporary


cdef inline int copy_back(object owner) except -1:
    """Copy what was written into a `Temporary` back to its array; for any other owner there is nothing to do."""
    return copy_home(owner) if is_copy(owner) else 0


cdef inline object source_array(object x, array_t *a, bint opaque):
    """Fill ``a`` with the content of ``x``, for reading; return its owner, which keeps ``a.data`` valid.

    With ``opaque``, element types outside ``dtypes.DTYPES`` are bytes with ``a.dtype`` -1: all plain data of fixed size
    (structures, long double), since moving needs no arithmetic.
    """
    return x if fast_array(x, a, False) else open_array(x, a, False, opaque)


cdef inline object target_array(object x, array_t *a, bint opaque):
    """Fill ``a`` with the memory of ``x``, for reading and writing; return its owner, for `copy_back` when done."""
    return x if fast_array(x, a, True) else open_array(x, a, True, opaque)


cdef inline bint overlap(const array_t *a, const array_t *b) noexcept nogil:
    """Whether two arrays have bytes in common."""
    return (<char *> a.data < <char *> b.data + b.nbytes and <char *> b.data < <char *> a.data + a.nbytes
            and a.nbytes and b.nbytes)


cdef int check_no_mask(object x) except -1
cdef object converted(object value, object dtype)

# For outputs.pyx.
cdef object empty_ndarray(int ndim, const Py_ssize_t *dims, object descr)    # in native byte order
cdef int code_of_tensor(object x, const DLTensor *t, bint opaque) except -2
