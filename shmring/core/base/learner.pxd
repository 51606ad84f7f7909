# The learner: which variant of a call is the fastest, from the times of calls. It neither waits nor looks at a clock.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from shmring.core.c.layout cimport SHMRING_MOST_DIMENSIONS
from shmring.core.c.layout cimport shmring_alternative as alternative_t
from shmring.core.c.layout cimport shmring_learner as learner_t

cdef enum state_t:
    UNKNOWN = 0
    PROBED = 1         # a few calls have shown that it is not far slower
    FASTER_ONCE = 2    # by little; the trial will be repeated

cdef enum:
    LEAST_TIMED = 4    # calls before a trial, and at its end, whose least times are compared
    MOST_ALTERNATIVES = 32     # bits of an offer
    MOST_VARIANTS = 4096       # a word has room for two


# The dimensions of a variant: how many values each has, and their meaning to the learner (`learner_t`).
ctypedef struct dimensions_t:
    uint8_t nvalues[SHMRING_MOST_DIMENSIONS]
    uint32_t of_stores
    uint32_t whole
    int32_t ordinary
    int32_t within


cdef void open_learner(learner_t *l, const dimensions_t *d, uint32_t tenant, uint32_t guess, uint32_t offer,
                       uint32_t lead, uint32_t window) noexcept nogil
cdef void put_off(learner_t *l, const learner_t *other) noexcept nogil
cdef void extend_offer(learner_t *l, uint32_t offer) noexcept nogil
cdef uint64_t look(learner_t *l) noexcept nogil
cdef uint32_t begin(learner_t *l, uint64_t word) noexcept nogil
cdef void note(learner_t *l, uint64_t call, int64_t inside_ns, int64_t whole_ns) noexcept nogil
cdef void note_trip(learner_t *l, int64_t ns) noexcept nogil
cdef bint is_sound(learner_t *l, const dimensions_t *d) noexcept nogil
cdef dict tried_us(learner_t *l, int dimension, tuple names)


# One for each alternative lies behind a learner, and one more.
cdef inline alternative_t *alternatives_of(learner_t *l) noexcept nogil:
    return <alternative_t *> (l + 1)


# Whether the rank that decides times that call.
cdef inline bint is_timed(learner_t *l, uint64_t call) noexcept nogil:
    return l.timed_from <= call < l.timed_to


# A variant is a number: its values are the digits, that of the first dimension is the last digit. An alternative is a
# number, too: those of the first dimension come first.

cdef inline uint32_t weight_of(const uint8_t *nvalues, int dimension) noexcept nogil:
    cdef uint32_t weight = 1
    cdef int d
    for d in range(dimension):
        weight *= nvalues[d]
    return weight


cdef inline int value_of(const uint8_t *nvalues, uint32_t variant, int dimension) noexcept nogil:
    cdef int d
    for d in range(dimension):
        variant //= nvalues[d]
    return <int> (variant % nvalues[dimension])


cdef inline uint32_t with_value(const uint8_t *nvalues, uint32_t variant, int dimension, int value) noexcept nogil:
    cdef uint32_t change = <uint32_t> (value - value_of(nvalues, variant, dimension))      # may wrap around
    return variant + change * weight_of(nvalues, dimension)


cdef inline uint32_t alternative(const uint8_t *nvalues, int dimension, int value) noexcept nogil:
    cdef int d
    for d in range(dimension):
        value += nvalues[d]
    return <uint32_t> value


# The bits of the first values of a dimension, for an offer.
cdef inline uint32_t values_of(const uint8_t *nvalues, int dimension, int n) noexcept nogil:
    return (<uint32_t> (1 << n) - 1) << alternative(nvalues, dimension, 0)
