"""Stores: through the cache or past it?

Between cores that share a cache, ordinary stores leave the data where the reader finds it. Between cores that do not,
each ordinary store must first fetch the line from the other core, and non-temporal stores are several times as fast
(``docs/benchmarks.md``). The system does not tell which it is, and on a virtual machine it changes while the program
runs. So it is tried: in every period of calls of one kind and size the first few are made in both ways, and the rest in
the way that was quicker.

Which calls are trials follows from their number alone, so all ranks try the same at the same time: one rank that stored
past its cache among others that do not would learn nothing. Only the time in copies and reductions counts, not that in
waits: ranks that come late for reasons of their own must not decide it.
"""

from libc.string cimport memset


cdef enum:
    PERIOD = 512       # calls; a trial costs at most a few call times of it
    FIRST = 1          # the very first call of all is cold
    TRIES = 2          # of each way; the first finds the other way's lines, so the lesser counts


cdef verdict_t next_call(stores_t *s, bint *streams) noexcept nogil:
    """Count a call and say how to make it."""
    cdef uint64_t place = s.calls % PERIOD
    s.calls += 1
    if FIRST <= place < FIRST + 2 * TRIES:
        streams[0] = place >= FIRST + TRIES
        return ON_TRIAL
    streams[0] = s.streams
    return SETTLED


cdef bint judge(stores_t *s, bint streams, int64_t busy_ns) noexcept nogil:
    """Take a trial's time; True if it was the last of the period and `streams` is decided anew."""
    cdef uint64_t place = (s.calls - 1) % PERIOD - FIRST
    if place % TRIES == 0 or busy_ns < s.least_ns[streams]:
        s.least_ns[streams] = busy_ns
    if place + 1 < 2 * TRIES:
        return False
    s.streams = s.least_ns[1] < s.least_ns[0]
    return True


def replay(costs):
    """What would be done in calls that cost ``(through the cache, past it)`` nanoseconds each; for tests.

    Returns
    -------
    list of tuple
        For each call whether it stored past the cache and whether it was a trial.
    """
    cdef stores_t s
    cdef bint streams = False, is_trial
    memset(&s, 0, sizeof(s))
    made = []
    for cost in costs:
        is_trial = next_call(&s, &streams) == ON_TRIAL
        if is_trial:
            judge(&s, streams, cost[streams])
        made.append((streams, is_trial))
    return made
