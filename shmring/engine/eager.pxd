# Talks: small collectives, every one of them one round of eager messages.
from libc.stdint cimport uint64_t

from shmring.arrays.reduce cimport reduce_kernel
from shmring.engine.rounds cimport engine_t
from shmring.sync.backoff cimport patience_t

# What is wanted of one rank's words, and where it goes.
ctypedef struct part_t:
    size_t offset
    size_t nbytes
    size_t place

# One small collective, as data: what this rank says, whom it hears, which part of their words it takes, and whether
# these are folded or placed side by side.
ctypedef struct eager_t:
    uint64_t signature
    const char *words              # NULL: this rank says nothing
    size_t nbytes                  # of words, at most SHMRING_EAGER_NBYTES
    int first                      # hears ranks first .. last - 1; itself among them reads its own words
    int last
    size_t offset                  # the part of each heard eager that is wanted
    size_t part_nbytes
    reduce_kernel kernel           # NULL: place
    size_t count                   # elements to fold
    char *out
    size_t stride                  # placing: distance between the parts of two ranks in out
    part_t *parts                  # placing: by rank, where parts differ; NULL: as said above
    # progress
    int heard
    bint spoken
    uint64_t round


cdef int start_eager(engine_t *e, eager_t *t) noexcept nogil
cdef int advance_eager(engine_t *e, eager_t *t, patience_t *patience) noexcept nogil
