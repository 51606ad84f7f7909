cdef class Mapping:
    cdef char *address            # NULL once closed
    cdef readonly size_t nbytes
    cdef Py_ssize_t views         # exported buffers; close() refuses while there are any
    cdef bint is_readonly

    cdef void unmap(self) noexcept
    cdef bint populate_range(self, size_t at, size_t end, bint write) except -1


cdef size_t PAGE_NBYTES
cdef size_t HUGE_NBYTES

cdef char *map_private_like(size_t nbytes, size_t like, int protection, int flags) noexcept nogil
cdef int populate(char *address, size_t nbytes, bint write) noexcept nogil
cdef void touch_pages(volatile char *address, size_t nbytes, bint write) noexcept nogil
