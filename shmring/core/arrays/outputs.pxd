# Outputs of calls (core/arrays/outputs.pyx).
cdef object empty_like_array(object x, tuple shape)
cdef tuple shape_of(object x)
