# The kinds of calls, and what each needs: the table of engine/kinds.h.

cdef extern from "engine/kinds.h" nogil:
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
        KIND_BROADCAST_MANY
        KIND_SEND
        KIND_RECV
        KIND_PROBE
        KIND_END

    # Sets of ranks.
    enum:
        OF_NO_RANK
        OF_ROOT
        OF_ALL

    ctypedef struct shmring_kind:
        const char *name
        char inputs            # ranks that contribute x
        char outputs           # ranks that get out
        bint blocks_in
        bint blocks_out
        bint takes_counts
        bint takes_op
        char shared_inputs     # on shared arrays: x of these ranks is loaded by others
        char shared_outputs    # on shared arrays: out of these ranks is stored by others

    const shmring_kind *KIND "KINDS"      # by code


cdef inline bint has_root(int kind) noexcept nogil:
    return KIND[kind].inputs == OF_ROOT or KIND[kind].outputs == OF_ROOT


cdef inline bint is_sender(int kind, int rank, int root) noexcept nogil:
    """Whether the ``x`` of this rank is read."""
    return KIND[kind].inputs == OF_ALL or (KIND[kind].inputs == OF_ROOT and rank == root)


cdef inline bint is_receiver(int kind, int rank, int root) noexcept nogil:
    """Whether the ``out`` of this rank is written."""
    return KIND[kind].outputs == OF_ALL or (KIND[kind].outputs == OF_ROOT and rank == root)
