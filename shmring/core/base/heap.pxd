# Zeroed memory of the C heap that lives as long as an object.

ctypedef struct heap_block_t:
    heap_block_t *next


cdef class Heap:
    cdef heap_block_t *blocks

    cdef void *allocate(self, size_t count, size_t nbytes) except NULL
