# The way in which ranks hand data over, learned from the times of their calls.
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport SHMRING_EXCHANGE, SHMRING_ORDINARY, shmring_outbox
from shmring._c.layout cimport shmring_trials as stores_t

cdef enum verdict_t:
    SETTLED = 0        # this call uses the way that was decided
    ON_TRIAL = 1       # this call is to be timed


cdef uint64_t tries_for(uint64_t rounds, uint64_t places) noexcept nogil
cdef verdict_t next_call(stores_t *s, int *way) noexcept nogil
cdef bint is_trial(stores_t *s, uint64_t call) noexcept nogil
cdef bint note(stores_t *s, uint64_t call, int64_t busy_ns, uint64_t ncounted=*) noexcept nogil
cdef int64_t least(stores_t *s, int way) noexcept nogil
cdef void decide(stores_t *s, const int64_t *cost_ns) noexcept nogil
cdef int best_stores(stores_t *s) noexcept nogil

# The kind of stores into slots of a call made in that way: ordinary ones in an exchange, where lines go back and forth.
cdef inline int stores_of(int way) noexcept nogil:
    return SHMRING_ORDINARY if way == SHMRING_EXCHANGE else way

cdef object trials_us(stores_t *s)
cdef void publish_costs(stores_t *s, shmring_outbox *own, uint64_t round) noexcept nogil
cdef bint sum_costs(stores_t *s, shmring_outbox **outbox, int size) noexcept nogil
