# The variants of a communicator's calls: what is learned of each, and how all ranks come to use the same one.
from libc.stdint cimport uint32_t, uint64_t

from shmring.base.learner cimport PATH, learner_t, value_of
from shmring.engine.compiled_plan cimport Program, call_learner_t, execution_t, program_t
from shmring.engine.rounds cimport engine_t

cdef enum:
    TELLING_NBYTES = 262144      # costs of smaller calls predict little: short bursts fit in store buffers

# A communicator's learners, SHMRING_NCHOICES of them, one for each of the calls made last.
ctypedef struct variants_t:
    call_learner_t *learners
    uint32_t ntenants              # calls that were ever given a learner
    # How calls begin of which nothing is known; all but the first are equal on all ranks.
    int stores
    bint exchanges
    int path                       # of shared arrays
    uint32_t step                  # calls that are timed together
    # What is not set by hand.
    bint learns_stores
    bint learns_output
    bint learns_threads
    bint learns_path


cdef void choose_variant(engine_t *e, variants_t *v, program_t *program, execution_t *x) noexcept nogil
cdef int output_stores(execution_t *x, int usual) noexcept nogil
cdef uint32_t offer_of(variants_t *v, Program program)
cdef dict stats_of(variants_t *v, Program program, nbytes, int nthreads)


cdef inline bint is_staged(execution_t *x) noexcept nogil:
    """Whether the variant of a call that could access shared arrays directly is not to."""
    return value_of(x.variant, PATH) != 0
