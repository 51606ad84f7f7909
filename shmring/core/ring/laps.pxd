# Learns the fastest kind of stores into a ring of bytes between one writer and its readers, and, if the ring has two
# parts, which of them the writer should fill first. A small part stays in the caches of both cores. On some processors
# that is quicker, on others it costs more to fetch its lines back from the reader's cache.
#
# The writer has a learner (core/base/learner.pyx) for which a lap, as many bytes as the ring has, is a call, since it
# determines where the next lap finds its lines. What a kind saves the writer it may cost the reader, so in a timed lap
# both time their copies: what is written carries the parity of its lap, and the reader keeps the sum of its times for
# each parity. Parts change how often both copy at the same time, so they are compared by the time from the end of one
# lap to that of the next, at the reader.
from libc.stdint cimport int64_t, uint64_t

from shmring.core.c.atomics cimport load_relaxed_u64, store_relaxed_u64
from shmring.core.c.layout cimport SHMRING_ORDINARY, SHMRING_STREAMING, shmring_laps
from shmring.core.kernel.reduce cimport copy_bytes
from shmring.core.sync.backoff cimport now_ns


# Begin a lap, before the writer stores the byte of that number, `position`, into a ring of that length. Visible in
# `read_ns` are the reader's times of all that was written more than one length before, and in `ended_ns` when it had
# read that; NULL: the part is not learned. `counter`: a word that only the writer stores, and the reader loads when it
# looks for news.
cdef void begin_lap(shmring_laps *w, uint64_t position, uint64_t length, const uint64_t *read_ns,
                    const uint64_t *ended_ns, uint64_t *counter) noexcept nogil


# Begin a lap if the last one is complete.
cdef inline void advance_laps(shmring_laps *w, uint64_t position, uint64_t length, const uint64_t *read_ns,
                              const uint64_t *ended_ns, uint64_t *counter) noexcept nogil:
    if <int64_t> (position - w.next_lap) >= 0:
        begin_lap(w, position, length, read_ns, ended_ns, counter)


# Copy into the ring by stores of that kind.
cdef inline void write_in_lap(shmring_laps *w, void *to, const void *source, uint64_t nbytes, int kind) noexcept nogil:
    cdef int64_t started
    if w.timed == 0:
        copy_bytes(to, source, nbytes, kind)
        return
    started = now_ns()
    copy_bytes(to, source, nbytes, kind)
    w.written_ns[w.timed - 1 & 1] += <uint64_t> (now_ns() - started)


# Copy out of the ring what was written in a lap with that `timed`. The reader stores `read_ns`.
cdef inline void read_in_lap(uint64_t timed, uint64_t *read_ns, void *to, const void *source, uint64_t nbytes,
                             int kind) noexcept nogil:
    cdef int64_t started
    cdef uint64_t *sum = &read_ns[timed - 1 & 1]
    if timed == 0:
        copy_bytes(to, source, nbytes, kind)
        return
    started = now_ns()
    copy_bytes(to, source, nbytes, kind)
    store_relaxed_u64(sum, load_relaxed_u64(sum) + <uint64_t> (now_ns() - started))


# How the reader copies out data stored by `kind`: in the same way, but never past its cache.
cdef inline int stores_of_reader(int kind) noexcept nogil:
    return SHMRING_ORDINARY if kind == SHMRING_STREAMING else kind & 3
