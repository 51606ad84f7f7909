# cython: cdivision=True
"""Learns which variant of a call is the fastest.

A *variant* is a value for each dimension in which a call can be made in several ways that give the same result: the
kind of stores, the schedule, and so on. An *alternative* is one value of one dimension. The learner begins with a guess
and tries one alternative at a time, all else as it is; what is faster stays.

A *look* times some calls as they are made now, then calls of the trial. The second least times are compared: other
work delays calls but speeds up none, and now and then one call finds in a cache what most must fetch. A large gain
counts at once, a small one if it repeats. What loses is tried again after a pause that grows, and longer if it was
twice as slow. An alternative of which nothing is known is first probed with a few calls where a full trial takes many.
The time that trials lose is bounded to a few calls at first, and to a part of all calls later.

Where calls, or messages between the processors, take another time than at the last look, the machine or its load has
changed. Nothing is decided then, and all alternatives are due. The first of them is the variant that was in use before,
as a whole, as processors are often moved to and fro.

One rank decides, and publishes a word: from which call on how many calls are a trial of which variant, and which
variant all later ones use. That is ``lead`` calls ahead, so that it has reached every rank by then, and the rank
publishes no other word until that many calls after the trial, when every rank has begun a call after it. So a
rank that loads the word before each of its calls uses the same variant as all others, without a further exchange.

Nothing here waits, and times are arguments: the same code learns about calls of collectives
(`collectives/engine/variants.pyx`), laps round a ring (`core/ring/laps.pyx`) and, in tests, simulated machines.
"""

from libc.stdint cimport INT64_MAX, UINT64_MAX
from libc.string cimport memcmp, memcpy, memset

from shmring.core.c.layout cimport SHMRING_ORDINARY, SHMRING_STRING


cdef enum:
    FIRST_LOOK = 20        # calls before it: the first ones find cold memory, and must not be slow
    IDLE = 48              # calls between looks if no alternative is due: so soon a change is noticed
    FIRST_PAUSE = 64       # calls until a slower alternative is tried again,
    LONG_PAUSE = 512       # if it took twice as long,
    LONGEST_PAUSE = 8192   # and at most; each is twice as long as the one before
    PROBE = 2              # calls of a first trial, where a full one is longer
    CALL = 64              # the unit in which losses are counted, 1 / CALL of a call
    FREE_CALLS = 8         # that trials may lose at first,
    SHARE = 100            # and later one call in so many
    RELIEF = 512           # calls after which a change grants the first ones again, if no processor was moved

# The fields of a word, from the highest bits down: tenant, number of the choice, number of the call from which on it
# applies, length, and two variants.
cdef extern from * nogil:
    """
    enum { TENANT_BITS = 12, NUMBER_BITS = 4, START_BITS = 14, LENGTH_BITS = 10, VARIANT_BITS = 12 };
    enum { LONGEST_TRIAL = (1 << LENGTH_BITS) - 1 };
    _Static_assert(TENANT_BITS + NUMBER_BITS + START_BITS + LENGTH_BITS + 2 * VARIANT_BITS == 64, "a word has 64 bits");
    _Static_assert(1 << VARIANT_BITS == 4096, "MOST_VARIANTS in learner.pxd");
    """
    enum:
        TENANT_BITS
        NUMBER_BITS
        START_BITS
        LENGTH_BITS
        VARIANT_BITS
        LONGEST_TRIAL


cdef void open_learner(learner_t *l, const dimensions_t *d, uint32_t tenant, uint32_t guess, uint32_t offer,
                       uint32_t lead, uint32_t window) noexcept nogil:
    """A learner that knows nothing. ``lead``: calls in which a word reaches all ranks; ``window``: of a full trial."""
    cdef alternative_t *alternatives = alternatives_of(l)
    cdef int a, n
    memset(l, 0, sizeof(learner_t))
    memcpy(l.nvalues, d.nvalues, sizeof(l.nvalues))
    n = nalternatives(l)
    memset(alternatives, 0, (n + 1) * sizeof(alternative_t))
    l.of_stores, l.whole, l.ordinary, l.within = d.of_stores, d.whole, d.ordinary, d.within
    l.tenant = tenant & (1 << TENANT_BITS) - 1
    l.variant = l.trial = l.stay = l.best = l.before = guess
    l.offer = offer
    l.lead = lead
    l.idle = IDLE
    l.window = min(window, <uint32_t> LONGEST_TRIAL)
    l.tried = -1
    l.next_look = FIRST_LOOK if offer else UINT64_MAX
    for a in range(n):
        if is_of_stores(l, a) and value_in(l, a) == SHMRING_STRING:        # on some processors far slower
            alternatives[a].due = FIRST_PAUSE
    alternatives[n].due = UINT64_MAX


cdef inline int nalternatives(const learner_t *l) noexcept nogil:
    """How many there are; also the number of the last one, the variant before."""
    cdef int d, n = 0
    for d in range(SHMRING_MOST_DIMENSIONS):
        n += l.nvalues[d]
    return n


cdef inline int dimension_of(const learner_t *l, int a) noexcept nogil:
    cdef int d = 0
    while d < SHMRING_MOST_DIMENSIONS - 1 and a >= l.nvalues[d]:
        a -= l.nvalues[d]
        d += 1
    return d


cdef inline int value_in(const learner_t *l, int a) noexcept nogil:
    """The value that an alternative is."""
    return a - <int> alternative(l.nvalues, dimension_of(l, a), 0)


cdef inline uint32_t with_alternative(const learner_t *l, uint32_t variant, int a) noexcept nogil:
    return with_value(l.nvalues, variant, dimension_of(l, a), value_in(l, a))


cdef inline bint is_of_stores(const learner_t *l, int a) noexcept nogil:
    return l.of_stores >> dimension_of(l, a) & 1


cdef void put_off(learner_t *l, const learner_t *other) noexcept nogil:
    """Do not soon try stores that have taken twice as long in another call, which has the same dimensions of stores."""
    cdef alternative_t *alternatives = alternatives_of(l)
    cdef const alternative_t *others = <const alternative_t *> (other + 1)
    cdef int a
    if other.of_stores != l.of_stores:
        return
    for a in range(nalternatives(l)):
        if is_of_stores(l, a) and others[a].state == UNKNOWN and others[a].wait >= LONG_PAUSE:
            alternatives[a].due = LONG_PAUSE


cdef void extend_offer(learner_t *l, uint32_t offer) noexcept nogil:
    """Learn about further alternatives, too."""
    l.offer |= offer
    if l.next_look == UINT64_MAX:
        l.next_look = l.calls + FIRST_LOOK


# ---- what all ranks do -----------------------------------------------------------------------------------------------

cdef inline uint64_t word_of(learner_t *l, uint64_t start, uint64_t length, uint64_t trial,
                             uint64_t stay) noexcept nogil:
    cdef uint64_t word = l.tenant
    word = word << NUMBER_BITS | (l.number & (1 << NUMBER_BITS) - 1)
    word = word << START_BITS | (start & (1 << START_BITS) - 1)
    word = word << LENGTH_BITS | length
    word = word << VARIANT_BITS | trial
    return word << VARIANT_BITS | stay


cdef uint32_t begin(learner_t *l, uint64_t word) noexcept nogil:
    """Count a call and return its variant. ``word``: the last one published by the rank that decides, or an older one
    if it is not for this call yet."""
    cdef uint64_t call = l.calls
    l.calls += 1
    if word != l.word and word >> 64 - TENANT_BITS == l.tenant:
        l.word = word
        l.variant = l.stay         # the trial before is over on all ranks
        l.stay = <uint32_t> (word & MOST_VARIANTS - 1)
        word >>= VARIANT_BITS
        l.trial = <uint32_t> (word & MOST_VARIANTS - 1)
        word >>= VARIANT_BITS
        l.length = <uint32_t> (word & LONGEST_TRIAL)
        word >>= LENGTH_BITS
        l.start = call + (word - call & (1 << START_BITS) - 1)
    if call < l.start:
        return l.variant
    return l.trial if call - l.start < l.length else l.stay


# ---- what the rank that decides does ---------------------------------------------------------------------------------

cdef uint64_t look(learner_t *l) noexcept nogil:
    """Before a call is begun: the word to publish, or 0."""
    cdef uint64_t lead = max(l.lead, <uint32_t> LEAST_TIMED), start = l.calls + lead, length
    cdef int m
    if l.is_looking or l.calls < l.next_look:
        return 0
    if l.best != l.stay:
        l.next_look = start + l.lead
        l.usual_ns = 0
        return publish(l, start, 0, l.best)
    l.tried = next_alternative(l)
    length = 0 if l.tried < 0 else length_of(l, l.tried)
    l.is_looking = True
    l.lost_before = l.lost
    l.trip_ns[0] = l.trip_ns[1] = 0
    for m in range(2):
        l.base_ns[m][0] = l.base_ns[m][1] = l.trial_ns[m][0] = l.trial_ns[m][1] = INT64_MAX
    l.timed_from, l.timed_to = start - LEAST_TIMED, start + length
    return 0 if l.tried < 0 else publish(l, start, length, variant_with(l, l.tried))


cdef uint64_t publish(learner_t *l, uint64_t start, uint64_t length, uint32_t trial) noexcept nogil:
    l.number += 1
    return word_of(l, start, length, trial, l.best)


cdef inline uint64_t length_of(learner_t *l, int a) noexcept nogil:
    """Calls of the next trial of an alternative."""
    cdef uint64_t window = l.window
    return min(window, <uint64_t> PROBE) if alternatives_of(l)[a].state == UNKNOWN else window


cdef inline bint is_in(learner_t *l, uint32_t variant, int a) noexcept nogil:
    """Whether a variant has that alternative."""
    return value_of(l.nvalues, variant, dimension_of(l, a)) == value_in(l, a)


cdef inline bint matters(learner_t *l, int a) noexcept nogil:
    """Whether an alternative would make a difference to the calls as they are made now."""
    return l.before != l.stay if a == nalternatives(l) else l.offer >> a & 1 and not is_in(l, l.stay, a)


cdef inline uint32_t variant_with(learner_t *l, int a) noexcept nogil:
    """The variant in use with that alternative. Directly on shared arrays nothing is staged: so stores into the outbox
    and plans are tried with staged ones. An exchange is best with ordinary stores, far as well, where no other
    schedule is."""
    cdef uint32_t variant
    if a == nalternatives(l):
        return l.before
    variant = with_alternative(l, l.stay, a)
    if a == l.ordinary:
        variant = with_value(l.nvalues, variant, 0, SHMRING_ORDINARY)
    if l.within >= 0 and l.offer >> l.within & 1 and not l.whole >> dimension_of(l, a) & 1:
        variant = with_alternative(l, variant, l.within)
    return variant


cdef int next_alternative(learner_t *l) noexcept nogil:
    """The alternative that has been due for longest, of those whose trial is expected to lose no more than it may."""
    cdef int64_t allowed = CALL * (FREE_CALLS + <int64_t> (l.calls // SHARE)), expected
    cdef int a, found = -1, before = nalternatives(l)
    for a in range(nalternatives(l) + 1):
        if not matters(l, a) or alternatives_of(l)[a].due > l.calls:
            continue
        expected = alternatives_of(l)[a].ratio - CALL if alternatives_of(l)[a].ratio else CALL // 2
        expected = max(expected, <int64_t> 0) * <int64_t> length_of(l, a)
        if expected and l.lost + expected > allowed:
            continue
        if found < 0 or alternatives_of(l)[a].due < alternatives_of(l)[found].due + (a == before):
            found = a
    return found


cdef inline int measure(learner_t *l) noexcept nogil:
    """Which times are compared: 1 until the next call, where what the call saves the caller's next accesses may spend;
    else 0 within the call."""
    cdef uint32_t made = variant_with(l, l.tried) if l.tried >= 0 else l.stay
    cdef int d
    for d in range(SHMRING_MOST_DIMENSIONS):
        if l.whole >> d & 1 and value_of(l.nvalues, made, d) != value_of(l.nvalues, l.stay, d):
            return 1
    return 0


cdef void note_trip(learner_t *l, int64_t ns) noexcept nogil:
    """Record how long a message between processors takes, in a timed call; 0: it could not be measured."""
    if ns > l.trip_ns[0]:
        l.trip_ns[0], l.trip_ns[1] = ns, l.trip_ns[0]
    elif ns > l.trip_ns[1]:
        l.trip_ns[1] = ns


cdef inline void keep_least(int64_t *two, int64_t ns) noexcept nogil:
    if ns < two[0]:
        two[0], two[1] = ns, two[0]
    elif ns < two[1]:
        two[1] = ns


cdef void note(learner_t *l, uint64_t call, int64_t inside_ns, int64_t whole_ns) noexcept nogil:
    """Record the time of a timed call: within it, and from its beginning to that of the next one. In the order of the
    calls. Negative: it was not made in the variant."""
    cdef uint64_t split = l.timed_from + LEAST_TIMED
    cdef int m
    cdef int64_t base, took
    if inside_ns < 0:
        pass
    elif call < split:
        keep_least(l.base_ns[0], inside_ns)
        keep_least(l.base_ns[1], whole_ns)
    else:
        m = measure(l)
        base, took = l.base_ns[m][1], whole_ns if m else inside_ns
        if 0 < base < took:
            l.lost += CALL * (min(took, 4 * base) - base) // base
        if call + LEAST_TIMED >= l.timed_to:
            keep_least(l.trial_ns[m], took)
    if call + 1 == l.timed_to:
        conclude(l)


cdef void conclude(learner_t *l) noexcept nogil:
    """End a look."""
    cdef int a = l.tried, m = measure(l), other
    cdef uint32_t made = variant_with(l, a) if a >= 0 else l.stay
    cdef uint64_t length = l.timed_to - l.timed_from
    cdef int64_t base = l.base_ns[m][1], trial = l.trial_ns[m][length >= 2 * LEAST_TIMED]
    cdef bint moved = have_moved(l), changed = moved or has_changed(l)
    l.is_looking = False
    l.tried = -1
    # So many calls after a long trial memory is again as the variant in use leaves it.
    l.next_look = l.calls + max(l.lead, l.window if length > 2 * LEAST_TIMED else 0)
    if l.base_ns[0][1] < INT64_MAX:
        l.usual_ns = l.base_ns[0][1]
    if l.trip_ns[1]:
        l.usual_trip_ns = l.trip_ns[1]
    if changed:
        start_over(l, a, moved)
    elif a < 0:
        l.next_look = l.calls + l.idle
    elif base == INT64_MAX or trial == INT64_MAX:
        alternatives_of(l)[a].due = l.calls + FIRST_PAUSE
    else:
        for other in range(nalternatives(l)):
            if is_in(l, l.stay, other) != is_in(l, made, other):
                alternatives_of(l)[other].ns = base if is_in(l, l.stay, other) else trial
        alternatives_of(l)[a].ratio = CALL * min(trial, 8 * base) // max(base, <int64_t> 1)
        judge(l, a, base, trial)


cdef bint have_moved(learner_t *l) noexcept nogil:
    """Whether messages between the processors take another time than at the last look. The largest time is not used,
    as it may contain an interruption."""
    cdef int64_t usual = l.usual_trip_ns, trip = l.trip_ns[1]
    return usual > 0 and trip > 0 and (2 * trip > 5 * usual or 5 * trip < 2 * usual)


cdef bint has_changed(learner_t *l) noexcept nogil:
    """Whether calls as they are made now take another time than at the last look."""
    cdef int64_t usual = l.usual_ns, base = l.base_ns[0][1]
    return usual > 0 and base < INT64_MAX and (base > usual + usual // 3 or base < usual - usual // 4)


cdef void start_over(learner_t *l, int tried, bint moved) noexcept nogil:
    """All that was learned may be wrong now, and what was counted as lost in this look. On a machine that changes from
    look to look all alternatives have their turns: first come those not tried since the change before."""
    cdef int a, before = nalternatives(l)
    cdef bint is_first, is_covered = False
    l.lost = l.lost_before
    if moved or l.calls - l.granted >= RELIEF:
        l.granted = l.calls
        l.lost = min(l.lost, CALL * <int64_t> (l.calls // SHARE))
    for a in range(nalternatives(l) + 1):
        is_first = a != tried and matters(l, a) and variant_with(l, a) == l.before
        if is_first:
            alternatives_of(l)[a].due = 0
        elif a == tried or alternatives_of(l)[a].ratio or alternatives_of(l)[a].due > l.calls:
            alternatives_of(l)[a].due = l.calls
        alternatives_of(l)[a].wait = 0
        alternatives_of(l)[a].ratio = 0
        alternatives_of(l)[a].state = UNKNOWN
        is_covered |= is_first and a != before
    if is_covered:
        alternatives_of(l)[before].due = UINT64_MAX


cdef void judge(learner_t *l, int a, int64_t base, int64_t trial) noexcept nogil:
    """Compare an alternative with the one in use."""
    cdef bint is_probe = alternatives_of(l)[a].state == UNKNOWN and l.window > PROBE
    if trial > (4 if is_probe else 2) * base:
        rest(l, a, LONG_PAUSE, UNKNOWN)
    elif trial < base - base // 3 or (not is_probe and trial < base - base // 8):
        adopt(l, a)
        l.before = l.stay
    elif is_probe:
        alternatives_of(l)[a].state = PROBED
        alternatives_of(l)[a].due = 0 if trial < base else l.calls
    elif alternatives_of(l)[a].state == FASTER_ONCE and trial < base - base // 32:
        adopt(l, a)
    elif trial < base - base // 32:
        alternatives_of(l)[a].state = FASTER_ONCE
        alternatives_of(l)[a].due = l.calls
    else:
        rest(l, a, FIRST_PAUSE, PROBED)


cdef void adopt(learner_t *l, int a) noexcept nogil:
    """Use the variant that was tried."""
    cdef int other
    l.best = variant_with(l, a)
    for other in range(nalternatives(l)):
        alternatives_of(l)[other].ratio = 0
        if is_in(l, l.stay, other) and not is_in(l, l.best, other):
            alternatives_of(l)[other].wait = 0
            rest(l, other, FIRST_PAUSE, PROBED)
    alternatives_of(l)[a].state = PROBED


cdef void rest(learner_t *l, uint32_t a, uint32_t pause, uint32_t state) noexcept nogil:
    """Try a slower alternative again, later than the last time."""
    alternatives_of(l)[a].wait = min(max(2 * alternatives_of(l)[a].wait, pause), <uint32_t> LONGEST_PAUSE)
    alternatives_of(l)[a].due = UINT64_MAX if <int> a == nalternatives(l) else l.calls + alternatives_of(l)[a].wait
    alternatives_of(l)[a].state = state


cdef bint is_sound(learner_t *l, const dimensions_t *d) noexcept nogil:
    """Whether no field leads out of a learner of these dimensions; for those in memory to which a peer may write."""
    return (memcmp(l.nvalues, d.nvalues, sizeof(l.nvalues)) == 0 and -1 <= l.tried <= nalternatives(l)
            and 0 < l.window <= LONGEST_TRIAL and l.whole == d.whole and l.within == d.within)


cdef dict tried_us(learner_t *l, int dimension, tuple names):
    """By name of each value that exists: microseconds of a call when last timed; 0 before."""
    cdef uint32_t first = alternative(l.nvalues, dimension, 0)
    return {name: alternatives_of(l)[first + value].ns / 1e3 for value, name in enumerate(names)
            if l.offer >> first + value & 1}
