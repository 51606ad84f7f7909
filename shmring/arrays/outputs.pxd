# Outputs of calls (arrays/outputs.pyx).

from shmring.arrays.array_view cimport array_t

cdef object empty_like_array(object x, tuple shape)
cdef tuple shape_of(object x)
cdef int check_overlap(array_t *inner, array_t *outer, size_t place) except -1
