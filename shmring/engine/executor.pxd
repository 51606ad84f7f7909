# The execution of a compiled plan, resumable at every wait.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.base.learner cimport learner_t
from shmring.engine.compiled_plan cimport program_t
from shmring.kernel.reduce cimport carrier_t, reduce_kernel
from shmring.engine.rounds cimport engine_t
from shmring.sync.backoff cimport patience_t

# What this rank knows of the variants of one call (engine/variants.pyx).
ctypedef struct call_learner_t:
    uint64_t signature             # 0: none
    uint64_t used_at               # the first round of its last call
    bint is_timed                  # so is the last call: `begun_ns` and `inside_ns`
    int64_t begun_ns
    int64_t inside_ns              # negative: the call was not made in its variant
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
