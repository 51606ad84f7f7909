"""The variants of a communicator's calls.

What makes calls alike is their signature, which all ranks compare. The learners of the signatures used last lie in a
table, and a call that has none takes the place of the one that was used least lately. Whether and where depends on the
sequence of calls alone, so every rank has each call's learner at the same position. One rank decides, and publishes its
words at that position in its outbox.

The blocks of a call with counts may be empty, so some ranks may not wait for one another: of those each rank decides
for itself, and about stores only.
"""

from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t

from shmring.core.c.atomics cimport load_acquire_u64, store_release_u64
from shmring.core.c.layout cimport (SHMRING_NCHOICES, SHMRING_ORDINARY, SHMRING_PREFETCHED, SHMRING_STREAMING,
                                SHMRING_STRING)
from shmring.core.base.learner cimport (LEAST_TIMED, alternative, alternatives_of, begin, is_timed, learner_t, look,
                                   note, note_trip, open_learner, put_off, tried_us, value_of, values_of,
                                   weight_of, with_value)
from shmring.collectives.engine.compiled_plan cimport LEAD_OF_ALL, OUTPUT, PATH, PLANS, SCHEDULE, STORES
from shmring.collectives.engine.kinds cimport KIND_NONE
from shmring.core.kernel.reduce cimport asks, by_strings
from shmring.core.ring.laps cimport stores_of_reader
from shmring.core.sync.backoff cimport now_ns
from shmring.core.sync.trip cimport trip_ns

from shmring.core.kernel.reduce import STORES as STORE_NAMES
from shmring.collectives.plan.choose import DIMENSIONS

cdef call_learner_t *nowhere = NULL
assert alternatives_of(&nowhere.learned) == nowhere.alternatives, "a learner's alternatives lie behind it"
assert [one.name for one in DIMENSIONS[:SCHEDULE + 1]] == ["stores", "path", "output", "schedule"]
assert DIMENSIONS[STORES].values == STORE_NAMES


cdef uint32_t dimensions_learned(object settings):
    """The dimensions that no setting pins: a bit each."""
    return sum([1 << d for d, one in enumerate(DIMENSIONS) if getattr(settings, one.setting) < 0])


cdef inline uint64_t learned_as(execution_t *x) noexcept nogil:
    """What a call has a learner by: its signature. Direct calls on private arrays take other times than on shared ones,
    so they have another one, by what is no signature."""
    return ~x.signature if x.reads_private else x.signature


cdef call_learner_t *known_learner(variants_t *v, program_t *program, uint64_t signature) noexcept nogil:
    """The learner that a call has; NULL: it has none yet, or none any more."""
    cdef uint32_t i
    if v.learners[program.learner].signature == signature:
        return &v.learners[program.learner]
    for i in range(SHMRING_NCHOICES):
        if v.learners[i].signature == signature:
            program.learner = i
            return &v.learners[i]
    return NULL


cdef uint32_t first_variant(variants_t *v, program_t *program, execution_t *x) noexcept nogil:
    """How a call begins of which nothing is known."""
    cdef const uint8_t *nvalues = program.dimensions.nvalues
    cdef uint32_t guess = with_value(nvalues, 0, PATH, v.path or x.reads_private)
    if v.exchanges and program.exchange and x.kind != KIND_NONE:
        return with_value(nvalues, guess, SCHEDULE, program.exchange)      # with ordinary stores
    return with_value(nvalues, guess, STORES, v.stores)


cdef call_learner_t *find_learner(variants_t *v, program_t *program, execution_t *x) noexcept nogil:
    """The learner of a call that begins: its own, or else a new one."""
    cdef uint64_t signature = learned_as(x)
    cdef call_learner_t *found = known_learner(v, program, signature)
    cdef const uint8_t *nvalues = program.dimensions.nvalues
    cdef uint32_t i, offer = program.offer
    cdef bint is_own = x.kind == KIND_NONE
    program.signature = signature
    if found != NULL:
        return found
    # The counts of calls often change: these calls take places from one another only.
    found = &v.learners[SHMRING_NCHOICES - WITH_COUNTS if is_own else 0]
    for i in range(SHMRING_NCHOICES - WITH_COUNTS if is_own else 0,
                   SHMRING_NCHOICES if is_own else SHMRING_NCHOICES - WITH_COUNTS):
        if v.learners[i].used_at < found.used_at:
            found = &v.learners[i]
    program.learner = <uint32_t> (found - v.learners)
    found.step = (v.ahead + program.fewest_rounds - 1) // program.fewest_rounds
    v.ntenants += 1
    if is_own:
        offer &= values_of(nvalues, STORES, nvalues[STORES]) | values_of(nvalues, OUTPUT, nvalues[OUTPUT])
    if x.passed_nbytes < TELLING_NBYTES:
        offer &= ~values_of(nvalues, OUTPUT, nvalues[OUTPUT])      # small outputs stay in the cache, as by rule
    open_learner(&found.learned, &program.dimensions, v.ntenants, first_variant(v, program, x), offer,
                 0 if is_own else steps_of(found, program.lead),
                 max(steps_of(found, program.window), <uint32_t> LEAST_TIMED))
    found.learned.idle = steps_of(found, found.learned.idle)
    found.learned.tenant |= found.learned.tenant == 0      # no word is 0
    for i in range(SHMRING_NCHOICES):
        put_off(&found.learned, &v.learners[i].learned)
    found.signature = signature
    found.ncalls = 0
    found.is_timed = False
    found.variant = UINT32_MAX
    return found


cdef inline uint32_t steps_of(call_learner_t *c, uint32_t ncalls) noexcept nogil:
    return (ncalls + c.step - 1) // c.step


cdef void choose_variant(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil:
    """Choose the variant of a call that begins, on all ranks alike."""
    cdef call_learner_t *c = find_learner(v, program, x)
    if c.ncalls % c.step == 0:
        begin_step(e, v, program, x, c)
    c.ncalls += 1
    c.used_at = e.next_round + 1
    x.learner = c
    x.is_timed = c.is_timed and not (x.is_odd and c.learned.offer & values_of(c.learned.nvalues, PATH, 2))
    x.late_ns = 0
    x.outbox_stores = c.stores
    x.out_stores = output_stores(x, x.usual_stores)
    x.program = x.direct if x.direct != NULL else plan_of(program, c.plan)
    program.used_at = x.program.used_at = c.used_at


cdef inline program_t *plan_of(program_t *program, uint32_t number) noexcept nogil:
    return program.plans[number] if number < program.nplans else program      # a peer may write nonsense


cdef uint32_t next_variant(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil:
    """The variant of a call that will be the next one; nothing is counted."""
    cdef call_learner_t *c = known_learner(v, program, learned_as(x))
    cdef learner_t copy
    if c == NULL:
        return first_variant(v, program, x)
    if c.ncalls % c.step:
        return c.variant
    copy = c.learned
    return begin(&copy, load_acquire_u64(word_place(e, program, x)))      # SYNC choice (meets: begin_step)


cdef program_t *next_plan(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil:
    """The plan of a call that will be the next one."""
    if x.direct != NULL:
        return x.direct
    return plan_of(program, next_variant(e, v, program, x) // weight_of(program.dimensions.nvalues, PLANS))


cdef bint is_next_staged(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil:
    """Whether the next call is to be staged even if it could access shared arrays directly."""
    return value_of(program.dimensions.nvalues, next_variant(e, v, program, x), PATH) != 0


cdef inline int decider_of(engine_t *e, program_t *program, execution_t *x) noexcept nogil:
    cdef int size = e.group.size
    return e.group.rank if x.kind == KIND_NONE else (max(x.root, 0) + program.decider + size) % size


cdef inline uint64_t *word_place(engine_t *e, program_t *program, execution_t *x) noexcept nogil:
    """Where the rank that decides about a call publishes its words."""
    return &e.group.outbox[decider_of(e, program, x)].choices[program.learner]


cdef inline void use(call_learner_t *c, uint32_t variant) noexcept nogil:
    """Keep the values of the variant with which calls are made now."""
    cdef const uint8_t *nvalues = c.learned.nvalues
    if c.variant != variant:
        c.variant = variant
        c.stores = value_of(nvalues, variant, STORES)
        c.path = value_of(nvalues, variant, PATH)
        c.output = value_of(nvalues, variant, OUTPUT)
        c.plan = variant // weight_of(nvalues, PLANS)


cdef void begin_step(engine_t *e, variants_t *v, program_t *program, execution_t *x, call_learner_t *c) noexcept nogil:
    """Begin ``c.step`` calls, which to the learner are one."""
    cdef learner_t *own = &c.learned
    cdef int decider = decider_of(e, program, x)
    cdef uint64_t *word = word_place(e, program, x)
    cdef uint64_t published
    cdef int64_t now = 0, inside_ns, whole_ns
    cdef int schedule
    if decider == e.group.rank:
        if c.is_timed:
            now = now_ns()
            whole_ns = now - c.begun_ns
            # Ranks that may be whole calls apart, as in a step of several, wait in the call for what was spent before.
            inside_ns = whole_ns if c.inside_ns >= 0 and (program.lead > LEAD_OF_ALL or v.ahead > 1) else c.inside_ns
            note(own, own.calls - 1, inside_ns, whole_ns)
        published = look(own)
        if published:
            store_release_u64(word, published)          # SYNC choice (meets: begin_step)
    # SYNC choice (meets: begin_step). The rank that decides has published it some calls ago: `learner_t.lead`.
    use(c, begin(own, load_acquire_u64(word)))
    c.is_timed = decider == e.group.rank and is_timed(own, own.calls - 1)
    if c.is_timed:
        if own.calls <= own.timed_from + LEAST_TIMED:
            note_trip(own, trip_ns(word))
            now = 0
        c.begun_ns, c.inside_ns = now or now_ns(), -1
    if own.stay != own.variant and own.calls - 1 == own.start + own.length and x.passed_nbytes >= TELLING_NBYTES:
        # It has just come into use: calls of sizes that are new begin so.
        v.stores = value_of(own.nvalues, own.stay, STORES)
        schedule = value_of(own.nvalues, own.stay, SCHEDULE)
        # The stores before may differ between ranks, so only a change of the schedule is one on all of them.
        if program.exchange and schedule != value_of(own.nvalues, own.variant, SCHEDULE):
            v.exchanges = schedule == program.exchange


cdef int output_stores(execution_t *x, int usual) noexcept nogil:
    """The kind of stores to the output; ``usual``: by rule, as `execution_t.usual_stores`."""
    cdef int value = x.learner.output
    if value:
        return SHMRING_ORDINARY if value == 1 else SHMRING_STREAMING if value == 2 else SHMRING_STRING
    return stores_of_reader(x.outbox_stores) if usual == SHMRING_STRING else usual


cdef uint32_t offer_of(variants_t *v, Program program):
    """The alternatives of a call whose first program this is: all values of the dimensions that are learned, but for
    the path, which is learned once arrays are shared, and stores that this processor has not."""
    cdef const uint8_t *nvalues = program.code.dimensions.nvalues
    cdef uint32_t offer = 0
    cdef int d
    if program.plan.size < 2 or program.plan.used_nbytes == 0:
        return 0
    for d in range(len(DIMENSIONS)):
        if v.learns >> d & 1 and nvalues[d] > 1 and d != PATH:
            offer |= values_of(nvalues, d, nvalues[d])
    if not by_strings:
        offer &= ~(<uint32_t> 1 << alternative(nvalues, STORES, SHMRING_STRING))
        offer &= ~(<uint32_t> 1 << alternative(nvalues, OUTPUT, 3))
    if not asks:
        offer &= ~(<uint32_t> 1 << alternative(nvalues, STORES, SHMRING_PREFETCHED))
    return offer


cdef dict stats_of(variants_t *v, Program program, nbytes, int nthreads):
    """How calls of ``nbytes`` bytes that execute a program are made; see `Communicator.stats`."""
    cdef call_learner_t *c = &v.learners[program.code.learner]
    cdef learner_t *own = &c.learned
    cdef bint is_known = c.signature == program.code.signature != 0
    cdef const uint8_t *nvalues = program.code.dimensions.nvalues
    cdef uint32_t variant = own.stay if is_known else 0
    cdef Program made = program.plans[variant // weight_of(nvalues, PLANS) % program.code.nplans]
    names = {one.name: (d, one.values or program.names.get(one.name, ("",))) for d, one in enumerate(DIMENSIONS)}
    return {
        "kind": program.plan.kind,
        "algorithm": made.plan.algorithm,
        "nbytes": nbytes,
        "rounds": made.code.rounds,
        "threads": 1 if made.last is None else nthreads,
        "calls": c.ncalls if is_known else 0,
        "variant": {name: of[value_of(nvalues, variant, at)] for name, (at, of) in names.items()} if is_known else {},
        "tried_us": {name: tried for name, (at, of) in names.items() if is_known and (tried := tried_us(own, at, of))},
    }
