"""Learns the fastest kind of stores into a ring of bytes between one writer and one reader.

Trials as in arrays/store_tuning.pyx, with one lap round the ring as a call, since it determines where the next lap
finds its lines. What a kind saves the writer it may cost the reader, so in a trial lap both time their copies: what is
written carries the parity of its lap, and the reader keeps the sum of its times for each parity.
"""

from shmring._c.layout cimport SHMRING_NSTORES, SHMRING_NWAYS
from shmring.arrays.store_tuning cimport ON_TRIAL, decide, is_trial, least, next_call, note, stores_t

cdef enum:
    LAPS_TO_TRY = 3        # laps in a trial of a kind of stores, of which two count


cdef void begin_lap(shmring_laps *w, uint64_t position, uint64_t length, const uint64_t *read_ns) noexcept nogil:
    # A private copy: a peer can write to `w`, and its fields are divisors below.
    cdef stores_t s = w.trials
    cdef uint64_t lap = s.calls, parity = lap & 1, has_read_ns = load_relaxed_u64(&read_ns[parity])
    cdef int64_t cost_ns[SHMRING_NWAYS]
    cdef int kind
    s.tries = LAPS_TO_TRY
    s.nways = SHMRING_NSTORES
    # The lap before the last has been read completely, or the last would not have found room. So its sums are complete.
    if (lap >= 2 and is_trial(&s, lap - 2)
            and note(&s, lap - 2, <int64_t> (w.written_ns[parity] + has_read_ns - w.read_before_ns[parity]))):
        for kind in range(<int> SHMRING_NSTORES):
            cost_ns[kind] = least(&s, kind)
        decide(&s, cost_ns)
    w.timed = 1 + parity if next_call(&s, &kind) == ON_TRIAL else 0
    w.kind = kind
    w.read_before_ns[parity] = has_read_ns
    w.written_ns[parity] = 0
    w.next_lap = position + length
    w.trials = s
