# The paths of a collective, and by path which buffers the ranks access of one another (`shmring.plan.zero_copy`).
from shmring.engine.kinds cimport KIND_ALL_GATHER, KIND_ALL_REDUCE, KIND, OF_ALL, OF_NO_RANK, OF_ROOT

# Through slots; on shared arrays; on shared arrays with one output for all ranks.
cdef enum:
    STAGED = 0
    ZERO_COPY = 1
    ONE_RESULT = 2


cdef inline int shared_inputs(int kind, int path) noexcept nogil:
    return OF_NO_RANK if kind == KIND_ALL_GATHER and path != ZERO_COPY else KIND[kind].shared_inputs


cdef inline int shared_outputs(int kind, int path) noexcept nogil:
    return OF_ALL if path == ONE_RESULT else KIND[kind].shared_outputs


cdef inline bint has_one_result(int kind) noexcept nogil:
    return kind in (KIND_ALL_REDUCE, KIND_ALL_GATHER)


cdef inline size_t parts_of_input(int kind, int size) noexcept nogil:
    return size if KIND[kind].blocks_in else 1


cdef inline size_t parts_of_output(int kind, int size) noexcept nogil:
    return size if KIND[kind].blocks_out else 1
