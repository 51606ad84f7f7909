# The variants of a communicator's calls: what is learned of each, and how all ranks come to use the same one.
from libc.stdint cimport uint32_t

from shmring.collectives.engine.compiled_plan cimport Program, call_learner_t, execution_t, program_t
from shmring.collectives.engine.rounds cimport engine_t

cdef enum:
    WITH_COUNTS = 16             # learners, the last ones, of calls with counts
    TELLING_NBYTES = 262144      # costs of smaller calls predict little: short bursts fit in store buffers

# A communicator's learners, SHMRING_NCHOICES of them, one for each of the calls made last.
ctypedef struct variants_t:
    call_learner_t *learners
    uint32_t ntenants              # calls that were ever given a learner
    # How calls begin of which nothing is known; all but the first are equal on all ranks.
    int stores
    bint exchanges
    int path                       # of shared arrays
    uint32_t ahead                 # rounds by which ranks that share processors may be apart; else 1
    uint32_t learns                # dimensions that no setting pins: a bit each


cdef void choose_variant(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil
cdef program_t *next_plan(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil
cdef bint is_next_staged(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil
cdef uint32_t dimensions_learned(object settings)
cdef uint32_t offer_of(variants_t *v, Program program)
cdef dict stats_of(variants_t *v, Program program, nbytes, int nthreads)
