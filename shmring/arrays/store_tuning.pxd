# With which kind of stores a rank writes its outbox, learned from the times of its calls.
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport SHMRING_NSTORES, shmring_outbox

# The state of one plan; zero at first except for `tries`.
ctypedef struct stores_t:
    uint64_t tries                 # trials of each kind in a period
    uint64_t calls                 # made with this plan
    int64_t least_ns[SHMRING_NSTORES]      # by kind: least time of this period's trials
    int64_t before_ns[SHMRING_NSTORES]     # the same, of the period before; 0 in the first
    int kind                       # the decision (enum shmring_stores), ...
    int64_t cost_ns[SHMRING_NSTORES]       # ... and its reason: the time of all ranks; 0 before the first
    uint64_t published_at          # in a collective: first round of the last trial, plus one, ...
    uint64_t summed_at             # ... and the call before which all ranks' times are summed

cdef enum verdict_t:
    SETTLED = 0        # this call uses the kind that was decided
    ON_TRIAL = 1       # this call is to be timed


cdef uint64_t tries_for(uint64_t rounds, uint64_t places) noexcept nogil
cdef verdict_t next_call(stores_t *s, int *kind) noexcept nogil
cdef bint is_trial(stores_t *s, uint64_t call) noexcept nogil
cdef bint note(stores_t *s, uint64_t call, int64_t busy_ns) noexcept nogil
cdef int64_t least(stores_t *s, int kind) noexcept nogil
cdef void decide(stores_t *s, const int64_t *cost_ns) noexcept nogil
cdef object trials_us(stores_t *s)
cdef void publish_costs(stores_t *s, shmring_outbox *own, uint64_t round) noexcept nogil
cdef bint sum_costs(stores_t *s, shmring_outbox **outbox, int size) noexcept nogil
