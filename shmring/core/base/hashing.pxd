# Hashes of numbers: the same in all processes.
from libc.stdint cimport uint64_t


cdef inline uint64_t spread(uint64_t number) noexcept nogil:
    """A number times an odd constant: its upper bits depend on all bits of the number."""
    return number * <uint64_t> 0x9e3779b97f4a7c15


cdef inline uint64_t mix(uint64_t digest, uint64_t number) noexcept nogil:
    """The digest of a sequence with one number more; its upper bits are the best ones."""
    digest = spread(digest ^ number)
    return digest ^ digest >> 29
