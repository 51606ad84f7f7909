# Any array in main memory -> pointer, count and dtype (arrays/array_view.pyx).
#
#     keeper = target_array(x, &a)        # a.data, a.count, a.nbytes, a.dtype, a.itemsize
#     ... without the interpreter ...     # valid as long as x and keeper live
#     give_back(keeper)                   # only after success: on failure x stays as it was
#
# Every function raises before it changes anything. `fast_array` needs no keeper but x.


ctypedef struct array_t:
    void *data          # may be NULL if count is 0
    size_t count        # elements
    size_t nbytes
    int dtype           # position in dtypes.DTYPES; -1: opaque bytes, only where the caller allowed them
    int itemsize


cdef bint fast_array(object x, array_t *a, bint writable) noexcept
cdef object source_array(object x, array_t *a, bint opaque=*)
cdef object target_array(object x, array_t *a, bint opaque=*)
cdef int give_back(object keeper) except -1
cdef bint is_copy(object keeper) noexcept
cdef object empty_like_array(object x, tuple shape)
cdef tuple shape_of(object x)
cdef int check_overlap(array_t *x, array_t *out, size_t place) except -1
