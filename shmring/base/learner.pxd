# The learner: which variant of a call is the fastest, from the times of calls. It neither waits nor looks at a clock.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring._c.layout cimport SHMRING_NALTERNATIVES, SHMRING_NDIMENSIONS, SHMRING_NVALUES
from shmring._c.layout cimport shmring_learner as learner_t

# Dimensions of a variant, in the order in which they are tried.
cdef enum:
    STORES = 0         # into the outbox, or the ring: enum shmring_stores
    PATH = 1           # of arrays that are shared: 0 direct, 1 staged
    OUTPUT = 2         # stores to the output: 0 by rule, 1 ordinary, 2 streaming, 3 string
    SCHEDULE = 3       # position in `Program.schedules`
    THREADS = 4        # whether the work of a rank is split: 0 by rule, 1 otherwise

cdef enum state_t:
    UNKNOWN = 0
    PROBED = 1         # a few calls have shown that it is not far slower
    FASTER_ONCE = 2    # by little; the trial will be repeated

cdef enum:
    LEAST_TIMED = 4    # calls before a trial, and at its end, whose least times are compared
    ALTERNATIVES = SHMRING_NALTERNATIVES


cdef void open_learner(learner_t *l, uint32_t tenant, uint32_t guess, uint32_t offer, uint32_t lead,
                       uint32_t window) noexcept nogil
cdef void put_off(learner_t *l, const learner_t *other) noexcept nogil
cdef void extend_offer(learner_t *l, uint32_t offer) noexcept nogil
cdef uint64_t look(learner_t *l) noexcept nogil
cdef uint32_t begin(learner_t *l, uint64_t word) noexcept nogil
cdef void note(learner_t *l, uint64_t call, int64_t inside_ns, int64_t whole_ns) noexcept nogil
cdef void note_trip(learner_t *l, int64_t ns) noexcept nogil
cdef bint is_sound(learner_t *l) noexcept nogil
cdef dict tried_us(learner_t *l, int dimension, tuple names)


# Whether the rank that decides times that call.
cdef inline bint is_timed(learner_t *l, uint64_t call) noexcept nogil:
    return l.timed_from <= call < l.timed_to


cdef inline uint32_t alternative(int dimension, int value) noexcept nogil:
    return dimension * SHMRING_NVALUES + value


cdef inline int dimension_of(uint32_t a) noexcept nogil:
    return <int> (a >> 2)          # SHMRING_NVALUES of each


# The bits of the first values of a dimension, for an offer.
cdef inline uint32_t values_of(int dimension, int nvalues) noexcept nogil:
    return (<uint32_t> (1 << nvalues) - 1) << dimension * SHMRING_NVALUES


cdef inline int value_of(uint32_t variant, int dimension) noexcept nogil:
    return <int> (variant >> 2 * dimension & 3)


cdef inline uint32_t with_alternative(uint32_t variant, uint32_t a) noexcept nogil:
    cdef uint32_t at = 2 * dimension_of(a)
    return variant & ~(<uint32_t> 3 << at) | (a & 3) << at
