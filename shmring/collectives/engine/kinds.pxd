# The kinds of calls, and what each needs: the table of collectives/engine/kinds.h, of which collectives/plan/kinds.py
# has the rows.

cdef extern from "collectives/engine/kinds.h" nogil:
    enum:
        KIND_NONE
        KIND_BARRIER
        KIND_ALL_REDUCE
        KIND_REDUCE
        KIND_BROADCAST
        KIND_ALL_GATHER
        KIND_REDUCE_SCATTER
        KIND_GATHER
        KIND_SCATTER
        KIND_ALL_TO_ALL
        KIND_SCAN
        KIND_EXSCAN
        KIND_ALL_REDUCE_MANY
        KIND_SEND
        KIND_RECV
        KIND_PROBE
        KIND_END
        OF_NO_RANK
        OF_ROOT
        OF_ALL
        READS_NOTHING
        READS_ALL
        READS_ROOT
        READS_THROUGH
        READS_BEFORE

    ctypedef struct shmring_kind:
        const char *name
        char inputs
        char outputs
        char reads
        signed char blocks_in
        signed char blocks_out
        bint takes_counts
        bint takes_op
        char shared_inputs
        char shared_outputs

    const shmring_kind *KIND "KINDS"      # by code


cdef inline bint has_root(int kind) noexcept nogil:
    return KIND[kind].inputs == OF_ROOT or KIND[kind].outputs == OF_ROOT


cdef inline bint is_sender(int kind, int rank, int root) noexcept nogil:
    """Whether the ``x`` of this rank is read."""
    return KIND[kind].inputs == OF_ALL or (KIND[kind].inputs == OF_ROOT and rank == root)


cdef inline bint is_receiver(int kind, int rank, int root) noexcept nogil:
    """Whether the ``out`` of this rank is written."""
    return KIND[kind].outputs == OF_ALL or (KIND[kind].outputs == OF_ROOT and rank == root)


cdef inline int nblocks(int blocks, int size) noexcept nogil:
    """How many blocks an array has: by `shmring_kind.blocks_in` or ``blocks_out``."""
    return size if blocks < 0 else blocks + 1


cdef inline int nblocks_in(int kind, int size) noexcept nogil:
    return nblocks(KIND[kind].blocks_in, size)


cdef inline int nblocks_out(int kind, int size) noexcept nogil:
    return nblocks(KIND[kind].blocks_out, size)


cdef inline bint ranks_read(int kind, int rank, int root, int size, int *first, int *last) noexcept nogil:
    """The ranks whose inputs reach the output of a rank that gets one: from ``first`` on, below ``last``. False: they
    do not follow one another."""
    cdef int reads = KIND[kind].reads
    first[0] = 0
    if reads == READS_ALL:
        last[0] = size
    elif reads == READS_ROOT:
        first[0] = root
        last[0] = root + 1
    elif reads == READS_THROUGH:
        last[0] = rank + 1
    else:
        last[0] = rank
        return reads == READS_BEFORE
    return True
