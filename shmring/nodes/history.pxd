# The calls that this rank has made (nodes/history.pyx).
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    NREMEMBERED = 1024


cdef class History:
    cdef readonly uint64_t number       # of the latest call
    cdef readonly str what
    cdef uint32_t digests[NREMEMBERED]  # of all calls up to each of the latest ones

    cpdef void note(self, uint64_t number, str what, uint32_t digest) noexcept
