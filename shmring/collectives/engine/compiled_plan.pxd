# Compiled plans: plans as structs, and their execution without the interpreter, resumable at every wait.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from shmring.core.c.layout cimport shmring_plan_note
from shmring.core.base.heap cimport Heap
from shmring.core.base.learner cimport MOST_ALTERNATIVES, alternative_t, dimensions_t, learner_t
from shmring.collectives.engine.rounds cimport engine_t
from shmring.core.kernel.reduce cimport carrier_t, reduce_kernel
from shmring.core.sync.backoff cimport patience_t

cdef enum:
    IN = 0
    OUT = 1
    SLOT = 2

cdef enum:
    COPY = 0
    REDUCE = 1
    CLAIM = 2
    PUBLISH = 3
    AWAIT = 4
    RELEASE = 5
    AWAIT_RELEASE = 6
    READ = 7       # a COPY from another rank's array, which need not be mapped here

cdef enum:
    LEAD_OF_ALL = 2    # calls until a choice has reached all ranks, where each rank loads from all others in a call

ctypedef struct operand_t:
    int32_t space
    int32_t rank
    int64_t offset
    int64_t offset_step
    int64_t round
    int64_t round_step

ctypedef struct step_t:
    int32_t code
    int32_t rank                   # of an AWAIT
    int32_t nsources
    int32_t nalso
    int8_t opens                   # a REDUCE: from operands only, or else the first source is a prefix
    int8_t closes                  # ... to a result, or else to a prefix
    int8_t wide                    # bytes of a prefix for each byte of an operand
    int64_t round
    int64_t round_step
    int64_t nbytes
    operand_t *operands            # dst, also ..., sources ...

ctypedef struct loop_t:
    int64_t times
    step_t *steps
    int nsteps


# The dimensions of variants, in the order in which they are tried (`shmring.collectives.plan.choose.DIMENSIONS`). The
# engine makes the first ones of the same plan; the values of the others, from PLANS on, are plans.
cdef enum:
    STORES = 0         # into the outbox: enum shmring_stores
    PATH = 1           # of arrays that are shared: 0 direct, 1 staged
    OUTPUT = 2         # stores to the output: 0 by rule, 1 ordinary, 2 streaming, 3 string
    PLANS = 3
    SCHEDULE = PLANS


# What an execution needs of a program: no objects, as helper threads have no interpreter.
ctypedef struct program_t:
    loop_t *loops
    int nloops
    uint64_t rounds
    uint64_t places                # of a slot: a power of two
    size_t place_nbytes
    const char *algorithm
    shmring_plan_note note         # what must be equal on all ranks
    bint gathers_all               # a rank that has ended it knows that all ranks have begun it
    # Of one thread's share (shmring.collectives.plan.thread_shares) of a collective: the program of the last thread,
    # and the distance between the shares of two threads. NULL, 0: one thread executes the collective.
    program_t *last
    size_t share_nbytes
    # Plans of the same call, of which this is the first one: by the digits of a variant from PLANS on.
    program_t **plans
    uint32_t nplans
    dimensions_t dimensions
    int exchange                   # which schedule is an exchange; 0: none
    uint64_t used_at               # the first round of its last call, plus one
    # what is learned (core/base/learner.pxd), equal on all ranks but for what is set by hand
    uint32_t offer
    uint32_t fewest_rounds         # of its plans, at least 1
    uint32_t window
    uint32_t lead
    int decider                    # the rank that decides: so many after the root, or after rank 0
    uint32_t learner               # where what is learned was last (collectives/engine/variants.pyx); a hint
    uint64_t signature             # of the last call that executed it; 0: none yet


# What this rank knows of the variants of one call (collectives/engine/variants.pyx).
ctypedef struct call_learner_t:
    uint64_t signature             # 0: none
    uint64_t used_at               # the first round of its last call
    uint64_t ncalls
    uint32_t step                  # calls that are timed together, and to the learner are one
    uint32_t variant               # of the step of calls that has begun (`begin_step`), and its values
    uint32_t plan
    uint8_t stores
    uint8_t path
    uint8_t output
    bint is_timed                  # so is that step: `begun_ns` and `inside_ns`
    int64_t begun_ns
    int64_t inside_ns              # of its last call; negative: no call was made in the variant
    learner_t learned
    alternative_t alternatives[MOST_ALTERNATIVES + 1]     # must lie behind it

# How far one collective has come: enough to go on after a signal was handled.
ctypedef struct execution_t:
    uint64_t signature
    uint64_t base                  # its first round
    uint64_t places                # in a slot, taken in turn by the rounds that use it
    size_t place_nbytes
    int loop
    int step
    int64_t iteration
    int outcome                    # UNREADY until its steps are done; then READY or TROUBLE
    int kind                       # of the plan; a signature need not have it
    int root
    size_t nbytes                  # of the plan: of a vector, or of one block of it
    size_t passed_nbytes           # of the array that the caller passed
    char *in_base
    char *out_base
    char **ins                     # by rank: the others' buffers as they lie here; read by zero-copy plans only
    char **outs
    const int32_t *readable        # by rank: the process in which `ins` is an address; 0: this one
    reduce_kernel kernel
    const carrier_t *carrier       # read by hierarchical plans only
    size_t itemsize
    int usual_stores               # to the output, by rule: enum shmring_stores; string: as a reader of the outbox
    int out_stores                 # kinds of stores of this call
    int outbox_stores
    program_t *program             # of the variant, or `direct`
    program_t *direct              # NULL, or to be executed directly on the ranks' arrays
    bint reads_private             # if it is direct, the kernel copies: at first it is staged
    bint is_odd                    # whether it cannot be made by the path that its variant has
    call_learner_t *learner
    bint is_timed                  # by the rank that decides
    int64_t late_ns                # that the call waited for ranks that had not begun it, if it is timed


cdef void open_execution(engine_t *e, execution_t *x) noexcept nogil
cdef int execute(engine_t *e, execution_t *x, patience_t *patience) noexcept nogil


cdef class Program:
    """A plan, compiled: the steps as structs."""

    cdef program_t code
    cdef readonly object plan
    cdef bytes algorithm_name
    cdef Program last                    # to which `code` points, as do these
    cdef list plans
    cdef readonly dict names             # of the values of each dimension of plans
    cdef Heap heap

    cdef void add_share(self, Program last, size_t nbytes) noexcept
    cdef int set_plans(self, list plans, dict names) except -1
    cdef int plan_trials(self, int nslots) except -1
    cdef int sign(self, tuple basis, plan, limits, int nthreads) except -1
    cdef int compile_step(self, step_t *s, object step) except -1
