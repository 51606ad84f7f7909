# Reductions of bytes by the kernels of the core, in parts (nodes/flat.pyx).

from shmring.kernel.reduce cimport carrier_t, reduce_kernel

ctypedef struct operation_t:
    reduce_kernel kernel
    const carrier_t *carrier
    size_t itemsize
    size_t wide             # bytes of an element of a partial result

cdef int set_operation(operation_t *o, str op, int code) except -1
cdef int fold(const operation_t *o, void *out, size_t count, const void **src, int n, const void *before,
              int total) except -1
