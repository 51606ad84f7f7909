# The structs of _c/layout.h, for cimport.
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


cdef extern from "layout.h" nogil:
    const uint64_t SHMRING_MAGIC
    const uint32_t SHMRING_LAYOUT_VERSION
    const uint32_t SHMRING_LINE
    const uint32_t SHMRING_FALSE_SHARING
    const uint32_t SHMRING_HEADER_NBYTES
    const uint32_t SHMRING_OUTBOX
    const uint32_t SHMRING_RING
    const uint32_t SHMRING_ARRAY
    const uint32_t SHMRING_CHANNEL

    ctypedef struct shmring_lifeline:
        uint32_t method
        int32_t pid
        uint64_t start_time
        uint64_t pid_ns

    ctypedef struct shmring_header:
        uint64_t magic
        uint32_t version
        uint32_t header_nbytes
        uint64_t nbytes
        uint32_t kind
        uint32_t uid
        uint8_t boot_id[16]
        uint8_t nonce[16]
        int32_t rank
        int32_t size
        uint64_t params[4]
        uint32_t ready
        uint64_t attached
        shmring_lifeline life
