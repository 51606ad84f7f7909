# What every room needs from C and from the interpreter: zeroed memory, timeouts, counts, errors without a caller.

from libc.stdint cimport int64_t


cdef enum:
    NO_LIMIT = -1    # of `seconds_to_ns`: wait as long as it takes


ctypedef struct heap_block_t:
    heap_block_t *next


cdef class Heap:
    cdef heap_block_t *blocks

    cdef void *allocate(self, size_t count, size_t nbytes) except NULL


cdef int64_t seconds_to_ns(object seconds, str name) except -2
cdef object int_or_none(object count)
cdef int64_t checked_count(object count, int64_t most) except -1
cdef int64_t checked_part(object count, int64_t whole) except -1


cdef inline int64_t timeout_to_ns(object seconds) except -2:
    return seconds_to_ns(seconds, "timeout")
