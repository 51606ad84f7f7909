"""Whispers: one cache miss brings the data and the news that it is there.

A whisper of up to 48 bytes is one line; each further line carries 56 bytes. Every line ends in its tag, the number of
its round plus one, stored last. No counter is read, no second line fetched, to know that a line has come.
A slot is written again only when all have consumed its last round (the claim in engine.pyx).
"""

from libc.string cimport memcpy

from shmring.atomics cimport load_acquire_u64, store_release_u64
from shmring.layout cimport SHMRING_FIRST_NBYTES, SHMRING_REST_NBYTES, shmring_rest_line


cdef void write_whisper(shmring_whisper *slot, uint64_t round, uint64_t signature, const char *data,
                        size_t nbytes) noexcept nogil:
    cdef size_t n = min(nbytes, <size_t> SHMRING_FIRST_NBYTES)
    cdef shmring_rest_line *line = slot.rest
    slot.first.signature = signature
    memcpy(slot.first.payload, data, n)
    # SYNC whispered (meets: has_arrived, read_whisper). Line by line: whoever sees the tag has what is before it.
    store_release_u64(&slot.first.tag, round + 1)
    while n < nbytes:      # at most SHMRING_WHISPER_NLINES - 1 times: nbytes <= SHMRING_WHISPER_NBYTES
        memcpy(line.payload, data + n, min(nbytes - n, <size_t> SHMRING_REST_NBYTES))
        store_release_u64(&line.tag, round + 1)
        n += SHMRING_REST_NBYTES
        line += 1


cdef bint has_arrived(shmring_whisper *slot, uint64_t round) noexcept nogil:
    """Whether the first line is there; its signature may then be compared."""
    # SYNC whispered (meets: write_whisper).
    return load_acquire_u64(&slot.first.tag) == round + 1


cdef const char *read_whisper(shmring_whisper *slot, uint64_t round, size_t offset, size_t nbytes,
                              char *scratch) noexcept nogil:
    """Where bytes ``offset`` to ``offset + nbytes`` of a whisper lie, NULL if one of their lines has not come yet.

    The first line must have arrived. What lies in it alone is read in place; more is gathered in ``scratch``.
    """
    cdef size_t end = offset + nbytes, at = 0, n, skip
    cdef shmring_rest_line *line
    if end <= SHMRING_FIRST_NBYTES:
        return <const char *> slot.first.payload + offset
    if offset < SHMRING_FIRST_NBYTES:
        at = SHMRING_FIRST_NBYTES - offset
        memcpy(scratch, slot.first.payload + offset, at)
    line = slot.rest + (offset + at - SHMRING_FIRST_NBYTES) // SHMRING_REST_NBYTES
    skip = (offset + at - SHMRING_FIRST_NBYTES) % SHMRING_REST_NBYTES
    while at < nbytes:
        # SYNC whispered (meets: write_whisper).
        if load_acquire_u64(&line.tag) != round + 1:
            return NULL
        n = min(nbytes - at, SHMRING_REST_NBYTES - skip)
        memcpy(scratch + at, line.payload + skip, n)
        at += n
        skip = 0
        line += 1
    return scratch
