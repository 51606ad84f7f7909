# The way in which ranks hand data over, learned from the times of their calls.
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport SHMRING_EXCHANGE, SHMRING_NWAYS, SHMRING_ORDINARY, shmring_outbox

# The state of one plan; zero at first except for `nways` and `tries`.
ctypedef struct stores_t:
    int nways                      # that are tried: the kinds of stores, and exchange if the plan has that form
    uint64_t tries                 # trials of each way in a period
    uint64_t calls                 # made with this plan
    int64_t least_ns[SHMRING_NWAYS]        # by way: least time of this period's trials
    int64_t before_ns[SHMRING_NWAYS]       # the same, of the period before; 0 in the first
    int way                        # the decision (enum shmring_stores), ...
    int64_t cost_ns[SHMRING_NWAYS]         # ... and its reason: the time of all ranks; 0 before the first
    uint64_t published_at          # in a collective: first round of the last trial, plus one, ...
    uint64_t summed_at             # ... and the call before which all ranks' times are summed

cdef enum verdict_t:
    SETTLED = 0        # this call uses the way that was decided
    ON_TRIAL = 1       # this call is to be timed


cdef uint64_t tries_for(uint64_t rounds, uint64_t places) noexcept nogil
cdef verdict_t next_call(stores_t *s, int *way) noexcept nogil
cdef bint is_trial(stores_t *s, uint64_t call) noexcept nogil
cdef bint note(stores_t *s, uint64_t call, int64_t busy_ns) noexcept nogil
cdef int64_t least(stores_t *s, int way) noexcept nogil
cdef void decide(stores_t *s, const int64_t *cost_ns) noexcept nogil
cdef int best_stores(stores_t *s) noexcept nogil

# The kind of stores into slots of a call made in that way: ordinary ones in an exchange, where lines go back and forth.
cdef inline int stores_of(int way) noexcept nogil:
    return SHMRING_ORDINARY if way == SHMRING_EXCHANGE else way

cdef object trials_us(stores_t *s)
cdef void publish_costs(stores_t *s, shmring_outbox *own, uint64_t round) noexcept nogil
cdef bint sum_costs(stores_t *s, shmring_outbox **outbox, int size) noexcept nogil
