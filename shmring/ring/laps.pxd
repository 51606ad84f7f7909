# Learns the fastest kind of stores into a ring of bytes between one writer and its readers.
#
# The writer has a learner (base/learner.pyx) for which one lap round the ring is a call, since it determines where the
# next lap finds its lines. What a kind saves the writer it may cost the reader, so in a timed lap both time their
# copies: what is written carries the parity of its lap, and the reader keeps the sum of its times for each parity.
from libc.stdint cimport int64_t, uint64_t

from shmring._c.atomics cimport load_relaxed_u64, store_relaxed_u64
from shmring._c.layout cimport SHMRING_NSTORES, SHMRING_ORDINARY, SHMRING_STRING, shmring_laps
from shmring.base.learner cimport (STORES, begin, is_sound, is_timed, learner_t, look, note, note_trip, open_learner,
                                   value_of, values_of)
from shmring.kernel.reduce cimport copy_bytes
from shmring.sync.backoff cimport now_ns
from shmring.sync.trip cimport trip_ns

cdef enum:
    WINDOW = 4             # laps in a trial


# Begin a lap, before the writer stores at `position` of a ring of that length. Visible in `read_ns` are the reader's
# times of all that was written more than one length before. `counter`: a word that only the writer stores, and the
# reader loads when it looks for news.
cdef inline void begin_lap(shmring_laps *w, uint64_t position, uint64_t length, const uint64_t *read_ns,
                           uint64_t *counter) noexcept nogil:
    # A private copy: a peer can write to `w`.
    cdef learner_t own = w.learner
    cdef uint64_t parity, has_read_ns
    cdef int64_t took_ns
    if own.calls == 0 or not is_sound(&own):
        open_learner(&own, 1, w.kind & 3, values_of(STORES, SHMRING_NSTORES), 0, WINDOW)
    parity = own.calls & 1
    has_read_ns = load_relaxed_u64(&read_ns[parity])
    # The lap before the last has been read completely, or the last would not have found room. So its sums are complete.
    if own.calls >= 2 and is_timed(&own, own.calls - 2):
        took_ns = <int64_t> (w.written_ns[parity] + has_read_ns - w.read_before_ns[parity])
        note(&own, own.calls - 2, took_ns, took_ns)
    w.kind = value_of(begin(&own, look(&own) or own.word), STORES)
    w.timed = 0
    if is_timed(&own, own.calls - 1):
        w.timed = 1 + parity
        note_trip(&own, trip_ns(counter))
    w.read_before_ns[parity] = has_read_ns
    w.written_ns[parity] = 0
    w.next_lap = position + length
    w.learner = own


# Begin a lap if the last one is complete.
cdef inline void advance_laps(shmring_laps *w, uint64_t position, uint64_t length, const uint64_t *read_ns,
                              uint64_t *counter) noexcept nogil:
    if <int64_t> (position - w.next_lap) >= 0:
        begin_lap(w, position, length, read_ns, counter)


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


# How the reader loads data stored by `kind`: string instructions for string stores, else ordinary loads.
cdef inline int stores_of_reader(int kind) noexcept nogil:
    return SHMRING_STRING if kind == SHMRING_STRING else SHMRING_ORDINARY
