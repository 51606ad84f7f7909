"""Learns the fastest kind of stores into a ring of bytes between one writer and its readers.

The writer has a learner (base/learner.pyx) for which one lap round the ring is a call, since it determines where the
next lap finds its lines. What a kind saves the writer it may cost the reader, so in a timed lap both time their copies:
what is written carries the parity of its lap, and the reader keeps the sum of its times for each parity.
"""

from shmring._c.layout cimport SHMRING_NSTORES
from shmring.base.learner cimport (STORES, begin, is_sound, is_timed, learner_t, look, note, open_learner, value_of,
                                   values_of)

cdef enum:
    WINDOW = 4             # laps in a trial


cdef void begin_lap(shmring_laps *w, uint64_t position, uint64_t length, const uint64_t *read_ns) noexcept nogil:
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
    w.timed = 1 + parity if is_timed(&own, own.calls - 1) else 0
    w.read_before_ns[parity] = has_read_ns
    w.written_ns[parity] = 0
    w.next_lap = position + length
    w.learner = own
