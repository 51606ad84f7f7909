"""Laps: what the writer of a ring of bytes learns of its variants, one lap after the other."""

from libc.stdint cimport INT64_MAX, uint32_t

from shmring.core.c.atomics cimport load_relaxed_u64
from shmring.core.c.layout cimport SHMRING_NPARTS, SHMRING_NSTORES, shmring_laps
from shmring.core.base.learner cimport (begin, dimensions_t, is_sound, is_timed, learner_t, look, note, note_trip,
                                   open_learner, value_of, values_of)
from shmring.core.sync.trip cimport trip_ns

cdef enum:
    WINDOW = 4             # laps in a trial

# The dimensions: the kind of stores, and the part that is filled first.
cdef enum:
    KIND = 0
    PART = 1

cdef dimensions_t dimensions
dimensions.nvalues[KIND] = SHMRING_NSTORES
dimensions.nvalues[PART] = SHMRING_NPARTS
dimensions.of_stores = 1 << KIND
dimensions.whole = 1 << PART
dimensions.ordinary = dimensions.within = -1


cdef void begin_lap(shmring_laps *w, uint64_t position, uint64_t length, const uint64_t *read_ns,
                    const uint64_t *ended_ns, uint64_t *counter) noexcept nogil:
    # A private copy: a peer can write to `w`.
    cdef shmring_laps own = w[0]
    cdef learner_t *learner = &own.learner
    cdef uint64_t parity, has_read_ns, had_ended_ns
    cdef uint32_t offer, variant
    cdef int64_t took_ns, apart_ns
    if learner.calls == 0 or not is_sound(learner, &dimensions):
        offer = values_of(dimensions.nvalues, KIND, SHMRING_NSTORES)
        if ended_ns != NULL:
            offer |= values_of(dimensions.nvalues, PART, SHMRING_NPARTS)
        open_learner(learner, &dimensions, 1, own.kind & 3, offer, 0, WINDOW)
    parity = learner.calls & 1
    has_read_ns = load_relaxed_u64(&read_ns[parity])
    had_ended_ns, own.ended_ns = own.ended_ns, 0
    # The lap before the last has been read completely, or the last would not have found room. So its sums are complete.
    if learner.calls >= 2 and is_timed(learner, learner.calls - 2):
        took_ns = <int64_t> (own.written_ns[parity] + has_read_ns - own.read_before_ns[parity])
        if ended_ns != NULL:
            own.ended_ns = load_relaxed_u64(&ended_ns[parity])
        apart_ns = <int64_t> (own.ended_ns - had_ended_ns) if had_ended_ns else INT64_MAX
        note(learner, learner.calls - 2, took_ns, apart_ns)
    variant = begin(learner, look(learner) or learner.word)
    own.kind = value_of(dimensions.nvalues, variant, KIND)
    if ended_ns != NULL:
        own.part = value_of(dimensions.nvalues, variant, PART)
    own.timed = 0
    if is_timed(learner, learner.calls - 1):
        own.timed = 1 + parity
        note_trip(learner, trip_ns(counter))
    own.read_before_ns[parity] = has_read_ns
    own.written_ns[parity] = 0
    own.next_lap = position + length
    w[0] = own
