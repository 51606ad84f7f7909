# Outputs of calls (arrays/outputs.pyx).

from shmring.arrays.array_view cimport array_t

cdef object empty_like_array(object x, tuple shape)
cdef tuple shape_of(object x)


cdef inline bint overlap(array_t *a, array_t *b) noexcept nogil:
    """Whether two arrays have bytes in common."""
    cdef char *first = <char *> a.data
    cdef char *second = <char *> b.data
    return first < second + b.nbytes and second < first + a.nbytes and a.nbytes and b.nbytes
