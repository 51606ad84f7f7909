# The execution of a compiled plan, resumable at every wait.
from libc.stdint cimport int64_t, uint64_t

from shmring.engine.compiled_plan cimport program_t
from shmring.kernel.reduce cimport carrier_t, reduce_kernel
from shmring.engine.rounds cimport engine_t
from shmring.sync.backoff cimport patience_t

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
    int out_stores                 # kinds of stores: enum shmring_stores in _c/layout.h; string: as slots, or ordinary
    int outbox_stores
    bint wants_exchange            # so would this rank, if it were rank 0, which all follow
    bint exchanges                 # it executes the other plan: known once the first round has been awaited
    bint on_trial                  # then the time in copies and reductions is added up
    int64_t busy_ns
    int64_t met_ns                 # when all had come, in a trial of a plan with two forms: then waits count, too


cdef int execute(engine_t *e, program_t *program, execution_t *x, patience_t *patience) noexcept nogil
