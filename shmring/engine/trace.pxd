# A timeline of one rank: the record of each call in a file of bounded size.
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef enum:
    ALGORITHM_NBYTES = 24

# Times are nanoseconds of CLOCK_MONOTONIC. The same in `shmring.watch.timeline`.
ctypedef struct record_t:
    uint64_t start_ns
    uint64_t end_ns        # 0 while the call is under way
    uint64_t wait_ns       # when its first wait began that outlasted a first look; 0: none did
    uint64_t waited_ns     # in all of them
    uint64_t signature
    uint64_t nbytes
    uint64_t number        # the same on all ranks: of the collective; of the message from one rank to one other
    int32_t peer           # of a message; -1: a collective
    uint32_t failed
    char algorithm[ALGORITHM_NBYTES]


cdef class Trace:
    cdef readonly str path
    cdef object memory             # the mapped file
    cdef record_t *records
    cdef uint64_t *count           # records ever begun
    cdef uint64_t capacity
    cdef dict numbers              # of the last message, by (peer, whether it was sent)

    cdef record_t *begin(self, uint64_t signature, uint64_t nbytes, uint64_t number, bytes algorithm) noexcept
    cdef void note_message(self, int kind, int peer, int tag, uint64_t nbytes, uint64_t start_ns) noexcept
