# The kernels and copies, for the engine.

cdef extern from "core/kernel/folds.h" nogil:
    # dst[i] = src[0][i] op src[1][i] op ... in that order; dst may be any one of the sources. Any address, any count.
    ctypedef void (*reduce_kernel)(void *dst, const void *const *src, int nsrc, size_t count) noexcept nogil
    ctypedef void (*closing_kernel)(void *dst, const void *const *src, int nsrc, size_t count, int total) noexcept nogil

    # The parts of a fold: operands -> prefix; prefix (src[0]) and operands -> prefix; prefix and operands -> the result
    # of ``total`` operands.
    ctypedef struct carrier_t:
        reduce_kernel opens
        reduce_kernel carries
        closing_kernel closes

# The kernel of the chosen instruction set; NULL if the operation is not defined on the dtype.
# Numbers as in dtypes.py.
cdef reduce_kernel find_kernel(int op, int dtype) noexcept nogil

# NULL where a prefix is a value of the same dtype, so that the kernel itself makes the parts.
cdef const carrier_t *find_carrier(int op, int dtype) noexcept nogil

# Whether string stores are made by string instructions; else they are ordinary ones.
cdef bint by_strings
# Whether lines for prefetched stores are asked for; else these are ordinary ones.
cdef bint asks

# By stores of that kind (enum shmring_stores in core/c/layout.h); fenced on return if they are streaming ones.
cdef void copy_bytes(void *dst, const void *src, size_t nbytes, int stores) noexcept nogil

# A whole fold, or a part of one. The first source and the result of a part may be prefixes with another element size.
ctypedef struct fold_t:
    reduce_kernel kernel           # NULL: closes
    closing_kernel closes
    int total
    size_t itemsize
    size_t first_itemsize
    size_t dst_itemsize

cdef inline fold_t whole_fold(reduce_kernel kernel, size_t itemsize) noexcept nogil:
    cdef fold_t f
    f.kernel, f.closes, f.total = kernel, NULL, 0
    f.itemsize = f.first_itemsize = f.dst_itemsize = itemsize
    return f

# Reduce into dst and copy each block to also (NULL: no copy) while it is in the cache. Either may be a source.
cdef void reduce_into(
    const fold_t *f, void *dst, void *also, const void *const *src, int nsrc, size_t count,
    int dst_stores, int also_stores,
) noexcept nogil
