# Compiled plans: plans as structs, and their execution without the interpreter, resumable at every wait.
from libc.stdint cimport int8_t, int32_t, int64_t, uint32_t, uint64_t

from shmring.base.heap cimport Heap
from shmring.base.learner cimport learner_t
from shmring.engine.rounds cimport engine_t
from shmring.kernel.reduce cimport carrier_t, reduce_kernel
from shmring.sync.backoff cimport patience_t

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

cdef enum:
    MOST_SCHEDULES = 4 # values of a dimension (base/learner.pxd)
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


# What an execution needs of a program: no objects, as helper threads have no interpreter.
ctypedef struct program_t:
    loop_t *loops
    int nloops
    uint64_t rounds
    uint64_t places                # of a slot: a power of two
    size_t place_nbytes
    const char *algorithm
    bint gathers_all               # a rank that has ended it knows that all ranks have begun it
    # Of one thread's share (shmring.plan.thread_shares) of a collective: the program of the last thread, and the
    # distance between the shares of two threads. NULL, 0: one thread executes the collective.
    program_t *last
    size_t share_nbytes
    # Variants of the same call, of which this is the first: by schedule, and by schedule and with or without threads.
    program_t *schedules[2 * MOST_SCHEDULES]
    int exchange                   # which schedule is an exchange; 0: none
    uint32_t offer                 # what is learned (base/learner.pxd), equal on all ranks but for what is set by hand
    uint32_t window
    uint32_t lead
    int decider                    # the rank that decides: so many after the root, or after rank 0
    uint32_t learner               # where what is learned was last (engine/variants.pyx); a hint
    uint64_t signature             # of the last call that executed it; 0: none yet


# What this rank knows of the variants of one call (engine/variants.pyx).
ctypedef struct call_learner_t:
    uint64_t signature             # 0: none
    uint64_t used_at               # the first round of its last call
    uint64_t ncalls
    uint32_t variant               # of the step of calls that has begun (`begin_step`)
    bint is_timed                  # so is that step: `begun_ns` and `inside_ns`
    int64_t begun_ns
    int64_t inside_ns              # of its last call; negative: no call was made in the variant
    learner_t learned

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
    reduce_kernel kernel
    const carrier_t *carrier       # read by hierarchical plans only
    size_t itemsize
    int usual_stores               # to the output, by rule: enum shmring_stores; string: if the outbox is stored to so
    int out_stores                 # kinds of stores of this call
    int outbox_stores
    uint32_t variant               # base/learner.pxd
    program_t *program             # of the variant, or on shared arrays
    call_learner_t *learner
    bint is_timed                  # by the rank that decides
    int64_t late_ns                # that the call waited for ranks that had not begun it, if it is timed


cdef int execute(engine_t *e, execution_t *x, patience_t *patience) noexcept nogil


cdef class Program:
    """A plan, compiled: the steps as structs."""

    cdef program_t code
    cdef readonly object plan
    cdef bytes algorithm_name
    cdef Program last                    # to which `code` points, as do the keys here: by position in `schedules`
    cdef dict variants
    cdef Heap heap

    cdef void add_share(self, Program last, size_t nbytes) noexcept
    cdef int add_schedule(self, Program other, int number) except -1
    cdef int plan_trials(self, int nslots) except -1
    cdef int compile_step(self, step_t *s, object step) except -1
