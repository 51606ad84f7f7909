# Outputs of calls (arrays/outputs.pyx).

from shmring.arrays.array_view cimport array_t

cdef object empty_like_array(object x, tuple shape)
cdef tuple shape_of(object x)


cdef inline bint overlaps(array_t *inner, array_t *outer, size_t place) noexcept nogil:
    """Whether two arrays overlap, unless ``inner`` is ``place`` bytes into ``outer``."""
    cdef char *a = <char *> inner.data
    cdef char *b = <char *> outer.data
    return inner.nbytes and outer.nbytes and a < b + outer.nbytes and b < a + inner.nbytes and a != b + place
