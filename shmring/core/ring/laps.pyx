"""Laps: what the writer of a ring of bytes learns of the kinds of stores, one lap round the ring after the other."""

from shmring.core.c.atomics cimport load_relaxed_u64
from shmring.core.c.layout cimport SHMRING_NSTORES, shmring_laps
from shmring.core.base.learner cimport (begin, dimensions_t, is_sound, is_timed, learner_t, look, note, note_trip,
                                   open_learner, values_of)
from shmring.core.sync.trip cimport trip_ns

cdef enum:
    WINDOW = 4             # laps in a trial

# One dimension: the kind of stores.
cdef dimensions_t dimensions
dimensions.nvalues[0] = SHMRING_NSTORES
dimensions.of_stores = 1
dimensions.ordinary = dimensions.within = -1


cdef void begin_lap(shmring_laps *w, uint64_t position, uint64_t length, const uint64_t *read_ns,
                    uint64_t *counter) noexcept nogil:
    # A private copy: a peer can write to `w`.
    cdef shmring_laps own = w[0]
    cdef learner_t *learner = &own.learner
    cdef uint64_t parity, has_read_ns
    cdef int64_t took_ns
    if learner.calls == 0 or not is_sound(learner):
        open_learner(learner, &dimensions, 1, own.kind & 3, values_of(dimensions.nvalues, 0, SHMRING_NSTORES), 0,
                     WINDOW)
    parity = learner.calls & 1
    has_read_ns = load_relaxed_u64(&read_ns[parity])
    # The lap before the last has been read completely, or the last would not have found room. So its sums are complete.
    if learner.calls >= 2 and is_timed(learner, learner.calls - 2):
        took_ns = <int64_t> (own.written_ns[parity] + has_read_ns - own.read_before_ns[parity])
        note(learner, learner.calls - 2, took_ns, took_ns)
    own.kind = begin(learner, look(learner) or learner.word) & 3
    own.timed = 0
    if is_timed(learner, learner.calls - 1):
        own.timed = 1 + parity
        note_trip(learner, trip_ns(counter))
    own.read_before_ns[parity] = has_read_ns
    own.written_ns[parity] = 0
    own.next_lap = position + length
    w[0] = own
