# Eager exchanges: small collectives, each in one round of eager messages.
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from shmring.core.kernel.reduce cimport reduce_kernel
from shmring.collectives.engine.rounds cimport engine_t
from shmring.core.sync.backoff cimport patience_t

# One small collective, as data: the message that this rank writes, the ranks that it reads from, the part of each
# message that it takes, and whether these parts are reduced or placed side by side.
ctypedef struct eager_t:
    uint64_t signature
    const char *payload            # NULL: this rank writes nothing
    size_t nbytes                  # of the payload, at most SHMRING_EAGER_NBYTES
    int first                      # reads the messages of ranks first .. last - 1; its own from `payload`
    int last
    size_t offset                  # the part of each message that is wanted
    size_t part_nbytes
    reduce_kernel kernel           # NULL: place
    size_t count                   # elements to reduce
    char *out
    # Placing, where the messages or their parts differ in size: elements, by sender, or what each sender has for each
    # rank, [sender * size + receiver]. NULL: `offset` and `part_nbytes`.
    const int64_t *counts
    bint has_matrix                # counts for each rank
    int itemsize                   # of the elements counted
    # progress
    int next_rank                  # to be read
    bint is_written                # this rank's own message
    uint64_t round


cdef inline void open_eager(eager_t *t, uint64_t signature, const char *payload,
                            size_t nbytes) noexcept nogil:
    """An eager exchange in which this rank sends ``payload`` (NULL: nothing) and so far receives nothing."""
    memset(t, 0, sizeof(eager_t))
    t.signature = signature
    t.payload = payload
    t.nbytes = nbytes


cdef int start_eager(engine_t *e, eager_t *t) noexcept nogil
cdef int advance_eager(engine_t *e, eager_t *t, patience_t *patience) noexcept nogil
