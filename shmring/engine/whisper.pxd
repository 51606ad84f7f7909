# Whispers: payloads small enough to travel in the same cache lines as their sequence number.
from libc.stdint cimport uint64_t

from shmring._c.layout cimport shmring_whisper


cdef void write_whisper(shmring_whisper *slot, uint64_t round, uint64_t signature, const char *data,
                        size_t nbytes) noexcept nogil
cdef bint has_arrived(shmring_whisper *slot, uint64_t round) noexcept nogil
cdef const char *read_whisper(shmring_whisper *slot, uint64_t round, size_t offset, size_t nbytes,
                              char *scratch) noexcept nogil
