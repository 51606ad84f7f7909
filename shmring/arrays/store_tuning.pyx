"""Learns the fastest way to hand data over: the kind of stores into the outbox, and whether results are exchanged.

Between cores that share a cache, ordinary stores leave the data where the reader finds it. Between cores that do not,
each ordinary store first fetches the line from the other core; on some processors non-temporal stores are several times
as fast, on others ordinary ones whose lines were asked for ahead (``docs/maintainers/experiments.md``). The system does not report
which case holds, and on a virtual machine it changes at run time. So all are measured: in every period of calls of one
collective and size some calls are trials of each way, and all others use the fastest one. An all-reduce has a further
way, to exchange results (`shmring.plan.exchange`), in which all ranks follow rank 0.

The number of a call decides whether it is a trial, so all ranks try the same way at the same time: one rank with
non-temporal stores among others with ordinary ones would learn nothing. Only the time of copies and reductions counts,
not waits: late ranks must not decide it. In a plan with two forms waits count once all ranks have come, since the forms
differ in them. A way may cost the readers what it saves the writer, so each rank publishes the times of its trials, and
the sum over all ranks decides. Each period begins with another way, and the trials of two periods count: in a program
that regularly does other work the caches are cold afterwards, and that must not always affect the same way.
"""

from shmring._c.atomics cimport load_acquire_u64, load_relaxed_u64, store_relaxed_u64, store_release_u64
from shmring._c.layout cimport (SHMRING_NCOSTS, SHMRING_NSTORES, SHMRING_NWAYS, SHMRING_ORDINARY, shmring_costs,
                                shmring_outbox)
from shmring.base.hashing cimport spread


cdef enum:             # in tries
    FIRST_PERIOD = 8   # each period is twice as long as the one before: the first decision may reflect cold caches
    PERIOD = 128       # the longest: where all other ways take twice as long, trials cost 2.5 % of the time


cdef struct place_t:
    uint64_t period        # number of the period
    uint64_t place         # position of the call in it


cdef uint64_t tries_for(uint64_t rounds, uint64_t places) noexcept nogil:
    """Trials of each way in a period, for a plan of ``rounds`` rounds whose slots cycle through ``places`` places.

    Until all places have been written in one way, their lines are where the way before left them; the second time some
    still are. Of the two calls after that the faster one counts.
    """
    rounds = max(rounds, <uint64_t> 1)
    return 2 + (2 * places + rounds - 1) // rounds


cdef verdict_t next_call(stores_t *s, int *way) noexcept nogil:
    """Count a call and decide how it stores."""
    cdef uint64_t call = s.calls
    s.calls += 1
    if is_trial(s, call):
        way[0] = way_tried(s, place_in_period(s, call))
        return ON_TRIAL
    way[0] = s.way
    return SETTLED


cdef bint is_trial(stores_t *s, uint64_t call) noexcept nogil:
    """Whether that call, counted from 0, is a trial; the first ones are not, as their memory is cold."""
    return s.tries <= place_in_period(s, call).place < (1 + s.nways) * s.tries


cdef int way_tried(stores_t *s, place_t at) noexcept nogil:
    """The way of a trial at that position."""
    return <int> ((at.place // s.tries - 1 + at.period) % s.nways)


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


cdef bint note(stores_t *s, uint64_t call, int64_t busy_ns, uint64_t ncounted=2) noexcept nogil:
    """Record the time of a trial, in the order of the calls; True if it was the last one of the period.

    Of the calls that try one way, the last ``ncounted`` count.
    """
    cdef place_t at = place_in_period(s, call)
    cdef int way = way_tried(s, at)
    cdef uint64_t number = at.place % s.tries
    if number == 0:
        s.before_ns[way] = s.least_ns[way]
    if number + ncounted <= s.tries or busy_ns < s.least_ns[way]:
        s.least_ns[way] = busy_ns
    return at.place + 1 == (1 + s.nways) * s.tries


cdef int64_t least(stores_t *s, int way) noexcept nogil:
    """The least time of the trials of this period and the one before."""
    return min(s.least_ns[way], s.before_ns[way]) if s.before_ns[way] else s.least_ns[way]


cdef void decide(stores_t *s, const int64_t *cost_ns) noexcept nogil:
    """Use the way of the least cost from now on."""
    cdef int way
    s.way = 0
    for way in range(s.nways):
        s.cost_ns[way] = cost_ns[way]
        if cost_ns[way] < cost_ns[s.way]:
            s.way = way


cdef int best_stores(stores_t *s) noexcept nogil:
    """The kind of stores of the least cost where results are not exchanged."""
    cdef int kind, best = SHMRING_ORDINARY
    for kind in range(<int> SHMRING_NSTORES):
        if s.cost_ns[kind] < s.cost_ns[best]:
            best = kind
    return best


cdef object trials_us(stores_t *s):
    """By way, what the last trials took, in microseconds; 0 before."""
    return tuple([s.cost_ns[way] / 1e3 for way in range(s.nways)])


# ---- among the ranks of a collective ---------------------------------------------------------------------------------

cdef inline shmring_costs *costs_at(shmring_outbox *outbox, uint64_t round) noexcept nogil:
    # A hash: many plans share these entries, and their rounds often advance by the same even number.
    return &outbox.costs[spread(round) >> 32 & (SHMRING_NCOSTS - 1)]


cdef void publish_costs(stores_t *s, shmring_outbox *own, uint64_t round) noexcept nogil:
    """Publish the times of this rank's trials. ``round``: the first round of the last trial, equal on all ranks."""
    cdef shmring_costs *costs = costs_at(own, round)
    cdef int way
    s.published_at = round + 1
    # By that call all places have been written once more, so every rank has ended its last trial and published.
    s.summed_at = s.calls + 2 * s.tries
    for way in range(s.nways):
        store_relaxed_u64(&costs.ns[way], <uint64_t> least(s, way))
    # SYNC costs (meets: sum_costs). The times are written.
    store_release_u64(&costs.posted_at, s.published_at)


cdef bint sum_costs(stores_t *s, shmring_outbox **outbox, int size) noexcept nogil:
    """Decide by the published times of all ranks; False if it is too early, or another plan has overwritten one."""
    cdef shmring_costs *costs
    cdef int64_t sums[SHMRING_NWAYS]
    cdef int rank, way
    if s.calls != s.summed_at or s.published_at == 0:
        return False
    for way in range(s.nways):
        sums[way] = 0
    for rank in range(size):
        costs = costs_at(outbox[rank], s.published_at - 1)
        if load_acquire_u64(&costs.posted_at) != s.published_at:      # SYNC costs (meets: publish_costs)
            return False
        for way in range(s.nways):
            sums[way] += <int64_t> load_relaxed_u64(&costs.ns[way])
    decide(s, sums)
    return True
