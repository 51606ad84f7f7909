"""The variants of a communicator's calls.

What makes calls alike is their signature, which all ranks compare. The learners of the signatures used last lie in a
table, and a call that has none takes the place of the one that was used least lately. Whether and where depends on the
sequence of calls alone, so every rank has each call's learner at the same position. One rank decides, and publishes its
words at that position in its outbox.

The blocks of a call with counts may be empty, so some ranks may not wait for one another: of those each rank decides
for itself, and about stores only.
"""

from libc.stdint cimport int64_t

from shmring._c.atomics cimport load_acquire_u64, store_release_u64
from shmring._c.layout cimport (SHMRING_NCHOICES, SHMRING_ORDINARY, SHMRING_PREFETCHED, SHMRING_STREAMING,
                                SHMRING_STRING)
from shmring.base.learner cimport (LEAST_TIMED, OUTPUT, PATH, SCHEDULE, STORES, THREADS, alternative, begin, is_timed,
                                   look, note, note_trip, open_learner, put_off, tried_us, value_of, values_of,
                                   with_alternative)
from shmring.engine.compiled_plan cimport LEAD_OF_ALL, MOST_SCHEDULES
from shmring.engine.kinds cimport KIND_NONE
from shmring.kernel.reduce cimport asks, by_strings
from shmring.sync.backoff cimport now_ns
from shmring.sync.trip cimport trip_ns

from shmring.kernel.reduce import STORES as STORE_NAMES

OUTPUT_NAMES = "by rule", "ordinary", "streaming", "string"
THREADS_NAMES = "by rule", "otherwise"
PATH_NAMES = "direct", "staged"


cdef call_learner_t *find_learner(variants_t *v, program_t *program, execution_t *x) noexcept nogil:
    """The learner of a call that begins: its own, or else a new one."""
    cdef call_learner_t *found = v.learners
    cdef call_learner_t *each
    cdef uint32_t i, guess, offer = program.offer
    cdef bint is_own = x.kind == KIND_NONE
    program.signature = x.signature
    if v.learners[program.learner].signature == x.signature:
        return &v.learners[program.learner]
    for i in range(SHMRING_NCHOICES):
        each = &v.learners[i]
        if each.signature == x.signature:
            program.learner = i
            return each
        if each.used_at < found.used_at:
            found = each
    program.learner = <uint32_t> (found - v.learners)
    v.ntenants += 1
    guess = with_alternative(0, alternative(STORES, v.stores))
    if v.exchanges and program.exchange and not is_own:
        guess = with_alternative(0, alternative(SCHEDULE, program.exchange))      # with ordinary stores
    guess = with_alternative(guess, alternative(PATH, v.path))
    if is_own:
        offer &= values_of(STORES, 4) | values_of(OUTPUT, 4)
    if x.passed_nbytes < TELLING_NBYTES:
        offer &= ~values_of(OUTPUT, 4)      # small outputs stay in the cache, as by rule
    open_learner(&found.learned, v.ntenants, guess, offer, 0 if is_own else steps_of(v, program.lead),
                 max(steps_of(v, program.window), <uint32_t> LEAST_TIMED))
    found.learned.idle = steps_of(v, found.learned.idle)
    found.learned.tenant |= found.learned.tenant == 0      # no word is 0
    if program.exchange:
        found.learned.ordinary = alternative(SCHEDULE, program.exchange)
    for i in range(SHMRING_NCHOICES):
        put_off(&found.learned, &v.learners[i].learned)
    found.signature = x.signature
    found.ncalls = 0
    found.is_timed = False
    return found


cdef inline uint32_t steps_of(variants_t *v, uint32_t ncalls) noexcept nogil:
    return (ncalls + v.step - 1) // v.step


cdef void choose_variant(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil:
    """Choose the variant of a call that begins, on all ranks alike."""
    cdef call_learner_t *c = find_learner(v, program, x)
    if c.ncalls % v.step == 0:
        begin_step(e, v, program, x, c)
    c.ncalls += 1
    c.used_at = e.next_round + 1
    x.variant = c.variant
    x.is_timed = c.is_timed
    x.learner = c
    x.late_ns = 0
    x.outbox_stores = value_of(x.variant, STORES)
    x.out_stores = output_stores(x, x.usual_stores)
    x.program = program.schedules[value_of(x.variant, SCHEDULE) | MOST_SCHEDULES * value_of(x.variant, THREADS)
                                  & 2 * MOST_SCHEDULES - 1]
    if x.program == NULL:         # a peer has written nonsense
        x.program = program


cdef void begin_step(engine_t *e, variants_t *v, program_t *program, execution_t *x, call_learner_t *c) noexcept nogil:
    """Begin ``v.step`` calls, which to the learner are one."""
    cdef learner_t *own = &c.learned
    cdef int size = e.group.size
    cdef int decider = e.group.rank if x.kind == KIND_NONE else (max(x.root, 0) + program.decider + size) % size
    cdef uint64_t *word = &e.group.outbox[decider].choices[program.learner]
    cdef uint64_t published
    cdef int64_t now = 0, inside_ns, whole_ns
    if decider == e.group.rank:
        if c.is_timed:
            now = now_ns()
            whole_ns = now - c.begun_ns
            # Ranks that may be whole calls apart, as in a step of several, wait in the call for what was spent before.
            inside_ns = whole_ns if c.inside_ns >= 0 and (program.lead > LEAD_OF_ALL or v.step > 1) else c.inside_ns
            note(own, own.calls - 1, inside_ns, whole_ns)
        published = look(own)
        if published:
            store_release_u64(word, published)          # SYNC choice (meets: begin_step)
    # SYNC choice (meets: begin_step). The rank that decides has published it some calls ago: `learner_t.lead`.
    c.variant = begin(own, load_acquire_u64(word))
    c.is_timed = decider == e.group.rank and is_timed(own, own.calls - 1)
    if c.is_timed:
        if own.calls <= own.timed_from + LEAST_TIMED:
            note_trip(own, trip_ns(word))
            now = 0
        c.begun_ns, c.inside_ns = now or now_ns(), -1
    if own.stay != own.variant and own.calls - 1 == own.start + own.length and x.passed_nbytes >= TELLING_NBYTES:
        # It has just come into use: calls of sizes that are new begin so.
        v.stores = value_of(own.stay, STORES)
        if program.exchange:
            v.exchanges = value_of(own.stay, SCHEDULE) == program.exchange


cdef int output_stores(execution_t *x, int usual) noexcept nogil:
    """The kind of stores to the output; ``usual``: by rule, as `execution_t.usual_stores`."""
    cdef int value = value_of(x.variant, OUTPUT)
    if value:
        return SHMRING_ORDINARY if value == 1 else SHMRING_STREAMING if value == 2 else SHMRING_STRING
    return SHMRING_ORDINARY if usual == SHMRING_STRING != x.outbox_stores else usual


cdef uint32_t offer_of(variants_t *v, Program program):
    """The alternatives of a call whose first program this is."""
    cdef uint32_t offer = 0
    if program.plan.size < 2 or program.plan.used_nbytes == 0:
        return 0
    nschedules = sum([number < MOST_SCHEDULES for number in program.variants])
    if v.learns_stores and nschedules > 1:
        offer |= values_of(SCHEDULE, nschedules)
    if v.learns_threads and MOST_SCHEDULES in program.variants:
        offer |= values_of(THREADS, 2)
    if v.learns_stores:
        offer |= values_of(STORES, 4) & stores_there_are(STORES, SHMRING_STRING)
        if not asks:
            offer &= ~(<uint32_t> 1 << alternative(STORES, SHMRING_PREFETCHED))
    if v.learns_output:
        offer |= values_of(OUTPUT, 4) & stores_there_are(OUTPUT, 3)
    return offer


cdef inline uint32_t stores_there_are(int dimension, int of_strings) noexcept:
    """A mask without the stores by string instructions where these are ordinary ones."""
    return ~(<uint32_t> 0) if by_strings else ~(<uint32_t> 1 << alternative(dimension, of_strings))


cdef dict stats_of(variants_t *v, Program program, nbytes, int nthreads):
    """How calls of ``nbytes`` bytes that execute a program are made; see `Communicator.stats`."""
    cdef call_learner_t *c = &v.learners[program.code.learner]
    cdef learner_t *own = &c.learned
    cdef bint is_known = c.signature == program.code.signature != 0
    cdef uint32_t variant = own.stay if is_known else 0
    cdef Program made = program.variants[value_of(variant, SCHEDULE) | MOST_SCHEDULES * value_of(variant, THREADS)]
    schedules = tuple([program.variants[i].plan.algorithm for i in range(MOST_SCHEDULES) if i in program.variants])
    names = {"stores": (STORES, STORE_NAMES), "output": (OUTPUT, OUTPUT_NAMES), "schedule": (SCHEDULE, schedules),
             "threads": (THREADS, THREADS_NAMES), "path": (PATH, PATH_NAMES)}
    return {
        "kind": program.plan.kind,
        "algorithm": made.plan.algorithm,
        "nbytes": nbytes,
        "rounds": made.code.rounds,
        "threads": 1 if made.last is None else nthreads,
        "calls": c.ncalls if is_known else 0,
        "variant": {name: of[value_of(variant, at)] for name, (at, of) in names.items()} if is_known else {},
        "tried_us": {name: tried for name, (at, of) in names.items() if is_known and (tried := tried_us(own, at, of))},
    }
