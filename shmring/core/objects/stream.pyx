"""The file into which an object is pickled. What is large in it is not copied twice."""

cimport cython

import numpy as np

cdef Py_ssize_t LARGE_NBYTES = 1 << 20


@cython.final
cdef class Stream:
    """Bytes in the order in which they are written; larger ones are kept as they are until `joined`.

    Not a `BytesIO`: that is closed when collected in a cycle, which its views prevent.
    """
    cdef bytearray end                 # what was written last
    cdef list pieces                   # all before

    def __cinit__(self):
        self.end, self.pieces = bytearray(), []

    def write(self, data):
        """Append bytes, or a buffer of bytes."""
        cdef Py_ssize_t nbytes = len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        if nbytes < LARGE_NBYTES:
            self.end += data
        else:
            self.pieces += [self.end, data]
            self.end = bytearray()

    def joined(self):
        """All that was written, as one memory of bytes.

        A large one is an array's: NumPy asks for huge pages, without which its page faults take several times as long
        as the copy.
        """
        if not self.pieces:
            return memoryview(self.end)
        pieces = [np.frombuffer(piece, np.uint8) for piece in (*self.pieces, self.end) if len(memoryview(piece))]
        return np.concatenate(pieces).data
