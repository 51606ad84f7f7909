"""Learns whether ordinary or non-temporal stores are faster for the outbox.

Between cores that share a cache, ordinary stores leave the data where the reader finds it. Between cores that do not,
each ordinary store first fetches the line from the other core, and non-temporal stores are several times as fast
(``docs/experiments.md``). The system does not report which case holds, and on a virtual machine it changes at run time.
So both are measured: in every period of calls of one kind and size some calls are trials of each way, and all others
use the faster one.

The number of a call decides whether it is a trial, so all ranks try the same way at the same time: one rank with
non-temporal stores among others with ordinary ones would learn nothing. Only the time of copies and reductions counts,
not waits: late ranks must not decide it. A way may cost the readers what it saves the writer, so each rank publishes
the times of its trials, and the sum over all ranks decides. The order of the two ways alternates between periods, and
the trials of two periods count: in a program that regularly does other work the caches are cold afterwards, and that
must not always affect the same way.
"""

from shmring._c.atomics cimport load_acquire_u64, load_relaxed_u64, store_relaxed_u64, store_release_u64
from shmring._c.layout cimport SHMRING_NCOSTS, shmring_costs, shmring_outbox


cdef enum:             # in tries
    FIRST_PERIOD = 8   # each period is twice as long as the one before: the first decision may reflect cold caches
    PERIOD = 64        # the longest: where one way takes twice as long as the other, trials cost 2 % of the time


cdef struct place_t:
    uint64_t period        # number of the period
    uint64_t place         # position of the call in it


cdef uint64_t tries_for(uint64_t rounds, uint64_t places) noexcept nogil:
    """Trials of each way in a period, for a plan of ``rounds`` rounds whose slots cycle through ``places`` places.

    Until all places have been written in one way, their lines are where the other way left them. Of the two calls
    after that the faster one counts.
    """
    return 2 + places // max(rounds, <uint64_t> 1)


cdef verdict_t next_call(stores_t *s, bint *streams) noexcept nogil:
    """Count a call and decide how it stores."""
    cdef uint64_t call = s.calls
    s.calls += 1
    if is_trial(s, call):
        streams[0] = way_tried(s, place_in_period(s, call))
        return ON_TRIAL
    streams[0] = s.streams
    return SETTLED


cdef bint is_trial(stores_t *s, uint64_t call) noexcept nogil:
    """Whether that call, counted from 0, is a trial; the first ones are not, as their memory is cold."""
    return s.tries <= place_in_period(s, call).place < 3 * s.tries


cdef bint way_tried(stores_t *s, place_t at) noexcept nogil:
    """Whether a trial at that position uses non-temporal stores."""
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
    """Record the time of a trial, in the order of the calls; True if it was the last one of the period."""
    cdef place_t at = place_in_period(s, call)
    cdef bint streams = way_tried(s, at)
    cdef uint64_t number = at.place % s.tries
    if number == 0:
        s.before_ns[streams] = s.least_ns[streams]
    if number + 2 <= s.tries or busy_ns < s.least_ns[streams]:
        s.least_ns[streams] = busy_ns
    return at.place + 1 == 3 * s.tries


cdef int64_t least(stores_t *s, bint streams) noexcept nogil:
    """The least time of the trials of this period and the one before."""
    return min(s.least_ns[streams], s.before_ns[streams]) if s.before_ns[streams] else s.least_ns[streams]


cdef void decide(stores_t *s, int64_t through_ns, int64_t past_ns) noexcept nogil:
    s.cost_ns[0], s.cost_ns[1] = through_ns, past_ns
    s.streams = past_ns < through_ns


# ---- among the ranks of a collective ---------------------------------------------------------------------------------

cdef inline shmring_costs *costs_at(shmring_outbox *outbox, uint64_t round) noexcept nogil:
    # A hash: many plans share these entries, and their rounds often advance by the same even number.
    return &outbox.costs[(round * <uint64_t> 0x9e3779b97f4a7c15) >> 32 & (SHMRING_NCOSTS - 1)]


cdef void publish_costs(stores_t *s, shmring_outbox *own, uint64_t round) noexcept nogil:
    """Publish the times of this rank's trials. ``round``: the first round of the last trial, equal on all ranks."""
    cdef shmring_costs *costs = costs_at(own, round)
    s.published_at = round + 1
    # By that call all places have been written once more, so every rank has ended its last trial and published.
    s.summed_at = s.calls + 2 * s.tries
    store_relaxed_u64(&costs.ns[0], least(s, False))
    store_relaxed_u64(&costs.ns[1], least(s, True))
    # SYNC costs (meets: sum_costs). The times are written.
    store_release_u64(&costs.posted_at, s.published_at)


cdef bint sum_costs(stores_t *s, shmring_outbox **outbox, int size) noexcept nogil:
    """Decide by the published times of all ranks; False if it is too early, or another plan has overwritten one."""
    cdef shmring_costs *costs
    cdef int64_t sums[2]
    cdef int rank, way
    if s.calls != s.summed_at or s.published_at == 0:
        return False
    sums[0] = sums[1] = 0
    for rank in range(size):
        costs = costs_at(outbox[rank], s.published_at - 1)
        if load_acquire_u64(&costs.posted_at) != s.published_at:      # SYNC costs (meets: publish_costs)
            return False
        for way in range(2):
            sums[way] += <int64_t> load_relaxed_u64(&costs.ns[way])
    decide(s, sums[0], sums[1])
    return True
