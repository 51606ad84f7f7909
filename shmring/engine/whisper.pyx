"""Whispers: one cache miss brings the data and the news that it is there.

A whisper of up to 48 bytes is one line; each further line carries 56 bytes. Every line ends in its tag, the number of
its round plus one, stored last. No counter is read, no second line fetched, to know that a line has come.
A slot is written again only when all have consumed its last round (the claim in engine/engine.pyx).
"""

from libc.string cimport memcpy

from shmring._c.atomics cimport load_acquire_u64, store_release_u64
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport SHMRING_FIRST_NBYTES, SHMRING_REST_NBYTES, shmring_rest_line


cdef void write_whisper(shmring_whisper *slot, uint64_t round, uint64_t signature, const char *data,
                        size_t nbytes) noexcept nogil:
    cdef shmring_rest_line *line = slot.rest
    slot.first.signature = signature
    memcpy(slot.first.payload, data, min(nbytes, <size_t> SHMRING_FIRST_NBYTES))
    # SYNC whispered (meets: has_arrived, read_whisper). Line by line: whoever sees the tag has what is before it.
    store_release_u64(&slot.first.tag, round + 1)
    if nbytes <= SHMRING_FIRST_NBYTES:
        return
    fault_point("line")
    data += SHMRING_FIRST_NBYTES
    nbytes -= SHMRING_FIRST_NBYTES
    while nbytes > SHMRING_REST_NBYTES:      # whole lines: a constant size makes the copy a few moves, no call
        memcpy(line.payload, data, SHMRING_REST_NBYTES)
        store_release_u64(&line.tag, round + 1)
        data += SHMRING_REST_NBYTES
        nbytes -= SHMRING_REST_NBYTES
        line += 1
    memcpy(line.payload, data, nbytes)
    store_release_u64(&line.tag, round + 1)


cdef bint has_arrived(shmring_whisper *slot, uint64_t round) noexcept nogil:
    """Whether the first line is there; its signature may then be compared."""
    # SYNC whispered (meets: write_whisper).
    return load_acquire_u64(&slot.first.tag) == round + 1


cdef const char *read_whisper(shmring_whisper *slot, uint64_t round, size_t offset, size_t nbytes,
                              char *scratch) noexcept nogil:
    """Where bytes ``offset`` to ``offset + nbytes`` of a whisper lie, NULL if one of their lines has not come yet.

    The first line must have arrived. What lies in it alone is read in place; more is gathered in ``scratch``.
    """
    cdef char *into = scratch
    cdef shmring_rest_line *line
    cdef size_t n
    if offset + nbytes <= SHMRING_FIRST_NBYTES:
        return <const char *> slot.first.payload + offset
    if nbytes == 0:
        return scratch      # nothing, at the end of a whisper: the line behind it never comes
    if offset < SHMRING_FIRST_NBYTES:
        n = SHMRING_FIRST_NBYTES - offset
        memcpy(into, slot.first.payload + offset, n)
        into += n
        nbytes -= n
        offset = 0
    else:
        offset -= SHMRING_FIRST_NBYTES
    line = slot.rest + offset // SHMRING_REST_NBYTES
    offset %= SHMRING_REST_NBYTES
    while nbytes > SHMRING_REST_NBYTES - offset:      # all but the last line
        # SYNC whispered (meets: write_whisper).
        if load_acquire_u64(&line.tag) != round + 1:
            return NULL
        if offset == 0:
            memcpy(into, line.payload, SHMRING_REST_NBYTES)      # a constant size: no call
        else:
            memcpy(into, line.payload + offset, SHMRING_REST_NBYTES - offset)
        into += SHMRING_REST_NBYTES - offset
        nbytes -= SHMRING_REST_NBYTES - offset
        offset = 0
        line += 1
    if load_acquire_u64(&line.tag) != round + 1:      # SYNC whispered (meets: write_whisper).
        return NULL
    memcpy(into, line.payload + offset, nbytes)
    return scratch
