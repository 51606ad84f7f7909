# Stores: whether a rank writes its outbox through its cache or past it, learned from what its calls cost.
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport shmring_outbox

# What one program has learned. Zero at first but for `tries`.
ctypedef struct stores_t:
    uint64_t tries                 # calls to try each way in
    uint64_t calls                 # made with this program
    int64_t least_ns[2]            # least time in steps in this period's trials: through the cache, past it
    int64_t before_ns[2]           # the same of the period before; 0 in the first
    bint streams                   # what was decided, ...
    int64_t cost_ns[2]             # ... and by what: the time of all who write and read, each way; 0 before
    uint64_t told_at               # in a collective: the round in which the last trial began, plus one, ...
    uint64_t heard_in              # ... and the call before which all ranks' times of it are summed

cdef enum verdict_t:
    SETTLED = 0        # this call goes as was decided
    ON_TRIAL = 1       # this call is to be timed


cdef uint64_t tries_for(uint64_t rounds, uint64_t places) noexcept nogil
cdef verdict_t next_call(stores_t *s, bint *streams) noexcept nogil
cdef bint is_trial(stores_t *s, uint64_t call) noexcept nogil
cdef bint note(stores_t *s, uint64_t call, int64_t busy_ns) noexcept nogil
cdef int64_t least(stores_t *s, bint streams) noexcept nogil
cdef void decide(stores_t *s, int64_t through_ns, int64_t past_ns) noexcept nogil
cdef void tell_costs(stores_t *s, shmring_outbox *own, uint64_t round) noexcept nogil
cdef bint hear_costs(stores_t *s, shmring_outbox **outbox, int size) noexcept nogil
