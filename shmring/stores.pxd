# Stores: whether a rank writes its outbox through its cache or past it, learned from what its calls cost.
from libc.stdint cimport int64_t, uint64_t

# What one program has learned. Zero at first but for `tries`.
ctypedef struct stores_t:
    uint64_t tries                 # calls to try each way in
    uint64_t calls                 # made with this program
    int64_t least_ns[2]            # least time in steps in this period's trials: through the cache, past it
    int64_t before_ns[2]           # the same of the period before; 0 in the first
    bint streams                   # what was decided

cdef enum verdict_t:
    SETTLED = 0        # this call goes as was decided
    ON_TRIAL = 1       # this call is to be timed


cdef uint64_t tries_for(uint64_t rounds, uint64_t places) noexcept nogil
cdef verdict_t next_call(stores_t *s, bint *streams) noexcept nogil
cdef bint is_trial(stores_t *s, uint64_t call) noexcept nogil
cdef bint judge(stores_t *s, uint64_t call, int64_t busy_ns) noexcept nogil
