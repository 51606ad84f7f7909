# cython: language_level=3, binding=True
"""C functions of shmring.ring for tests in Python; built by `support.compiled`."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from shmring.core.c.layout cimport shmring_ring_role
from shmring.core.ring.framing cimport BYTES, frame_t, longest_frame, next_frame, open_frame, word_of
from shmring.core.ring.spsc cimport (consumer_t, producer_t, ring_attach_consumer, ring_attach_producer, ring_commit,
                                ring_in, ring_is_gone)


def longest(uint64_t capacity):
    """Bytes of the longest frame in a ring of so many words."""
    return longest_frame(capacity)


def frame_through(buffer, uint64_t nbytes):
    """Put one frame, without its payload, into the empty ring in a buffer; what its consumer finds: bytes, and words
    from the frame's beginning to the end of the ring. Ends are not taken."""
    cdef Py_buffer view
    cdef producer_t p
    cdef consumer_t c
    cdef frame_t f
    cdef size_t size
    cdef int64_t needed
    cdef int outcome
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        base = ring_in(&view, &size)
        if ring_attach_producer(&p, base, size, True, False, 8) or ring_attach_consumer(&c, base, size, True, False, 8):
            raise ValueError("there is no ring of words in this buffer")
        if open_frame(&p, word_of(BYTES), nbytes, &needed) == NULL:
            raise ValueError(f"a frame of {nbytes} bytes does not fit")
        ring_commit(&p, p.reserved)
        outcome = next_frame(&c, &f)
        if outcome != 1:
            raise ValueError(f"next_frame() returned {outcome}")
        return f.nbytes, c.capacity - (c.head & c.mask)
    finally:
        PyBuffer_Release(&view)


def is_gone_by(uint32_t word):
    """Whether the holder of an end whose liveness has that word is taken for gone."""
    cdef shmring_ring_role role
    memset(&role, 0, sizeof(role))
    role.taken, role.liveness.word = 1, word
    return ring_is_gone(&role)
