"""Zeroed memory of the C heap that lives as long as an object."""

from libc.stdlib cimport calloc, free


cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    HEAD_NBYTES = 16      # of a block: keeps the alignment of calloc


cdef class Heap:
    """Memory of zeros, freed with this object.

    It refers to no Python object, so the garbage collector does not clear it before its owner.
    """

    def __dealloc__(self):
        cdef heap_block_t *block
        while self.blocks != NULL:
            block = self.blocks
            self.blocks = block.next
            free(block)

    cdef void *allocate(self, size_t count, size_t nbytes) except NULL:
        """``count`` times ``nbytes`` bytes."""
        cdef heap_block_t *block = NULL
        if count <= (<size_t> PY_SSIZE_T_MAX - HEAD_NBYTES) // max(nbytes, <size_t> 1):
            block = <heap_block_t *> calloc(1, HEAD_NBYTES + count * nbytes)
        if block == NULL:
            raise MemoryError(f"no memory for {count} x {nbytes} bytes")
        block.next = self.blocks
        self.blocks = block
        return <char *> block + HEAD_NBYTES
