# What every room needs from C and from the interpreter: zeroed memory, timeouts, errors without a caller.

from libc.stdint cimport int64_t


cdef enum:
    NO_LIMIT = -1    # of `timeout_to_ns`: wait as long as it takes


cdef class HeapBlock:
    cdef void *memory


cdef void *allocate(list blocks, size_t count, size_t nbytes) except NULL
cdef int64_t timeout_to_ns(object seconds) except -2
