"""Blocks: zeroed memory that goes with the object that asked for it."""

from libc.stdlib cimport calloc, free


cdef class Block:
    """Memory that is freed with this object."""

    def __dealloc__(self):
        free(self.memory)


cdef void *allocate(list blocks, size_t count, size_t nbytes) except NULL:
    """``count`` times ``nbytes`` bytes of zeros, freed with ``blocks``, a list that the owner keeps."""
    cdef Block block = Block.__new__(Block)
    block.memory = calloc(max(count, <size_t> 1), nbytes)
    if block.memory == NULL:
        raise MemoryError(f"no memory for {count} x {nbytes} bytes")
    blocks.append(block)
    return block.memory
