# The kernels and copies, for the engine.

# dst[i] = src[0][i] op src[1][i] op ... in that order; dst may be any one of the sources. Any address, any count.
ctypedef void (*reduce_kernel)(void *dst, const void *const *src, int nsrc, size_t count) noexcept nogil

# The kernel of the chosen instruction set; NULL if the operation is not defined on the dtype.
# Numbers as in dtypes.py.
cdef reduce_kernel find_kernel(int op, int dtype) noexcept nogil

# streaming: past the cache, complete (fenced) on return.
cdef void copy_bytes(void *dst, const void *src, size_t nbytes, bint streaming) noexcept nogil

# Reduce into dst and, while it is hot, copy to also (NULL: nowhere). Either may be any one of the sources.
cdef void reduce_into(
    reduce_kernel kernel, void *dst, void *also, const void *const *src, int nsrc, size_t count, size_t itemsize,
    bint dst_streaming, bint also_streaming,
) noexcept nogil
