cdef class Mapping:
    cdef char *address            # NULL once closed
    cdef readonly size_t nbytes
    cdef Py_ssize_t views         # exported buffers; close() refuses while there are any

    cdef void unmap(self) noexcept
    cdef bint populate_range(self, size_t at, size_t end, bint write) except -1
