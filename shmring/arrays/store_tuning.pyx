"""Stores: through the cache or past it?

Between cores that share a cache, ordinary stores leave the data where the reader finds it. Between cores that do not,
each ordinary store must first fetch the line from the other core, and non-temporal stores are several times as fast
(``docs/benchmarks.md``). The system does not tell which it is, and on a virtual machine it changes while the program
runs. So it is tried: in every period of calls of one kind and size some are made in both ways, and the rest in the way
that was quicker.

Which calls are trials follows from their number alone, so all ranks try the same at the same time: one rank that stored
past its cache among others that do not would learn nothing. Only the time in copies and reductions counts, not that in
waits: ranks that come late for reasons of their own must not decide it. What a way saves who writes it may cost who
reads, so each tells what its trials took, and the sum over all ranks decides. Which way is tried first takes turns, and
the trials of two periods count: a program that now and then does something else finds its caches cold after it, and
that must not always meet the same way.
"""

from libc.string cimport memset

from shmring._c.atomics cimport load_acquire_u64, load_relaxed_u64, store_relaxed_u64, store_release_u64
from shmring._c.layout cimport SHMRING_NCOSTS, shmring_costs, shmring_outbox


cdef enum:             # in tries
    FIRST_PERIOD = 8   # each is twice as long as the one before: a first verdict may come from a cold start
    PERIOD = 64        # the last: where one way takes twice as long as the other, trials take 2 % of the time


cdef struct place_t:
    uint64_t period        # its number
    uint64_t place         # of the call in it


cdef uint64_t tries_for(uint64_t rounds, uint64_t places) noexcept nogil:
    """How often each way must be tried in a period, for a program of so many rounds that take turns in so many places.

    Until all places have been written this way their lines lie where the other way has left them. Two calls after that
    count, the quicker one of them.
    """
    return 2 + places // max(rounds, <uint64_t> 1)


cdef verdict_t next_call(stores_t *s, bint *streams) noexcept nogil:
    """Count a call and say how to make it."""
    cdef uint64_t call = s.calls
    s.calls += 1
    if is_trial(s, call):
        streams[0] = way_tried(s, place_in_period(s, call))
        return ON_TRIAL
    streams[0] = s.streams
    return SETTLED


cdef bint is_trial(stores_t *s, uint64_t call) noexcept nogil:
    """Whether that call, counted from 0, is one to be timed: not the very first, those find the memory cold."""
    return s.tries <= place_in_period(s, call).place < 3 * s.tries


cdef bint way_tried(stores_t *s, place_t at) noexcept nogil:
    """Past the cache or through it, in a trial there."""
    return (at.place >= 2 * s.tries) != (at.period & 1)


cdef place_t place_in_period(stores_t *s, uint64_t call) noexcept nogil:
    cdef uint64_t begin = 0, length = FIRST_PERIOD * s.tries
    cdef place_t at
    at.period = 0
    while length < PERIOD * s.tries and call - begin >= length:
        begin += length
        length *= 2
        at.period += 1
    at.period += (call - begin) // length
    at.place = (call - begin) % length
    return at


cdef bint note(stores_t *s, uint64_t call, int64_t busy_ns) noexcept nogil:
    """Take the time of a trial, in the order of the calls; True if it was the last of the period."""
    cdef place_t at = place_in_period(s, call)
    cdef bint streams = way_tried(s, at)
    cdef uint64_t number = at.place % s.tries
    if number == 0:
        s.before_ns[streams] = s.least_ns[streams]
    if number + 2 <= s.tries or busy_ns < s.least_ns[streams]:
        s.least_ns[streams] = busy_ns
    return at.place + 1 == 3 * s.tries


cdef int64_t least(stores_t *s, bint streams) noexcept nogil:
    """Of this period's trials and of those of the one before."""
    return min(s.least_ns[streams], s.before_ns[streams]) if s.before_ns[streams] else s.least_ns[streams]


cdef void decide(stores_t *s, int64_t through_ns, int64_t past_ns) noexcept nogil:
    s.cost_ns[0], s.cost_ns[1] = through_ns, past_ns
    s.streams = past_ns < through_ns


# ---- among the ranks of a collective ---------------------------------------------------------------------------------

cdef inline shmring_costs *costs_at(shmring_outbox *outbox, uint64_t round) noexcept nogil:
    # Programs take turns; spread by a multiplication, for rounds often go up by the same even number.
    return &outbox.costs[(round * <uint64_t> 0x9e3779b97f4a7c15) >> 32 & (SHMRING_NCOSTS - 1)]


cdef void tell_costs(stores_t *s, shmring_outbox *own, uint64_t round) noexcept nogil:
    """Tell the others what the period's trials took here. ``round``: where the last began, the same on all ranks."""
    cdef shmring_costs *costs = costs_at(own, round)
    s.told_at = round + 1
    # By then all places have been written once more, so everyone has ended the last trial, and told.
    s.heard_in = s.calls + 2 * s.tries
    store_relaxed_u64(&costs.ns[0], least(s, False))
    store_relaxed_u64(&costs.ns[1], least(s, True))
    # SYNC costs (meets: hear_costs). The times are written.
    store_release_u64(&costs.told_at, s.told_at)


cdef bint hear_costs(stores_t *s, shmring_outbox **outbox, int size) noexcept nogil:
    """Decide by what all have told; False if it is not time, or another program's word lies over one of theirs."""
    cdef shmring_costs *costs
    cdef int64_t sums[2]
    cdef int rank, way
    if s.calls != s.heard_in or s.told_at == 0:
        return False
    sums[0] = sums[1] = 0
    for rank in range(size):
        costs = costs_at(outbox[rank], s.told_at - 1)
        if load_acquire_u64(&costs.told_at) != s.told_at:      # SYNC costs (meets: tell_costs)
            return False
        for way in range(2):
            sums[way] += <int64_t> load_relaxed_u64(&costs.ns[way])
    decide(s, sums[0], sums[1])
    return True
