# The vocabulary of core/c/atomics.h, for cimport.
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "core/c/atomics.h" nogil:
    uint32_t load_relaxed_u32(const uint32_t *p)
    uint32_t load_acquire_u32(const uint32_t *p)
    void store_relaxed_u32(uint32_t *p, uint32_t value)
    void store_release_u32(uint32_t *p, uint32_t value)
    bint compare_swap_u32(uint32_t *p, uint32_t expected, uint32_t desired)
    uint64_t load_relaxed_u64(const uint64_t *p)
    uint64_t load_acquire_u64(const uint64_t *p)
    void store_relaxed_u64(uint64_t *p, uint64_t value)
    void store_release_u64(uint64_t *p, uint64_t value)
    bint compare_swap_u64(uint64_t *p, uint64_t expected, uint64_t desired)
    uint64_t add_one_u64(uint64_t *p)
    uint32_t subtract_one_u32(uint32_t *p)
    uint32_t add_u32(uint32_t *p, uint32_t n)
    void full_fence()
    void cpu_pause()
