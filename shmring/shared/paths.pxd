# The paths of a collective, and by path which buffers the ranks access of one another (`shmring.plan.zero_copy`).
from shmring.engine.signature cimport (KIND_ALL_GATHER, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, KIND_BROADCAST, KIND_GATHER,
                                       KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_SCATTER)

# Through slots; on shared arrays; on shared arrays with one output for all ranks.
cdef enum:
    STAGED = 0
    ZERO_COPY = 1
    ONE_RESULT = 2

# The ranks with buffers that other ranks access in a plan; only these buffers must be shared.
cdef enum:
    OF_NO_RANK = 0
    OF_ROOT = 1
    OF_ALL = 2


cdef inline int shared_inputs(int kind, int path) noexcept nogil:
    if kind in (KIND_ALL_REDUCE, KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_ALL_TO_ALL):
        return OF_ALL
    if kind == KIND_ALL_GATHER:
        return OF_ALL if path == ZERO_COPY else OF_NO_RANK
    return OF_ROOT if kind in (KIND_BROADCAST, KIND_SCATTER) else OF_NO_RANK


cdef inline int shared_outputs(int kind, int path) noexcept nogil:
    if kind == KIND_ALL_REDUCE or path == ONE_RESULT:
        return OF_ALL
    return OF_ROOT if kind in (KIND_REDUCE, KIND_GATHER) else OF_NO_RANK


cdef inline bint has_one_result(int kind) noexcept nogil:
    return kind in (KIND_ALL_REDUCE, KIND_ALL_GATHER)


cdef inline size_t parts_of_input(int kind, int size) noexcept nogil:
    return size if kind in (KIND_REDUCE_SCATTER, KIND_SCATTER, KIND_ALL_TO_ALL) else 1


cdef inline size_t parts_of_output(int kind, int size) noexcept nogil:
    return size if kind in (KIND_ALL_GATHER, KIND_GATHER, KIND_ALL_TO_ALL) else 1
