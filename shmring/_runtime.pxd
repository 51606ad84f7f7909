# Blocks: zeroed memory that goes with the object that asked for it.


cdef class Block:
    cdef void *memory


cdef void *allocate(list blocks, size_t count, size_t nbytes) except NULL
