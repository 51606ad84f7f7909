cdef bint is_plain(x)
