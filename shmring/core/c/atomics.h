/* The only atomics of the project: plain words in shared memory, read and written with named orders.
 *
 * A word is a naturally aligned uint32_t or uint64_t. C11's _Atomic types of those sizes are lock-free and laid
 * out like the plain ones on every target we build for (asserted below), so a word can live in a struct that
 * Cython, NumPy or another process sees as an integer.
 *
 *   load_relaxed / store_relaxed    a word only we write, or a hint
 *   load_acquire / store_release    the two ends of a sync point: docs/maintainers/memory-model.md lists every pair
 *   full_fence                      between a store and a load of another word: "I published" and "is a waiter asleep?"
 *   compare_swap                    of several writers one succeeds: the abort record, roles, waking
 *   add_one                         threads of one rank take numbers (collectives/engine/recording.pyx); returns the old count; relaxed
 *   subtract_one                    the threads of one rank count down the threads still at work (team.h); returns the
 *                                   new count
 *   cpu_pause                       inside a spin: lets the sibling thread run and keeps the exit cheap
 */
#ifndef SHMRING_ATOMICS_H
#define SHMRING_ATOMICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

_Static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4, "atomic words must be plain words");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "a lock cannot be shared by processes");

#define SHMRING_WORD(T, name)                                                                                          \
    static inline T load_relaxed_##name(const T *p) {                                                                  \
        return atomic_load_explicit((const _Atomic T *)p, memory_order_relaxed);                                       \
    }                                                                                                                  \
    static inline T load_acquire_##name(const T *p) {                                                                  \
        return atomic_load_explicit((const _Atomic T *)p, memory_order_acquire);                                       \
    }                                                                                                                  \
    static inline void store_relaxed_##name(T *p, T value) {                                                           \
        atomic_store_explicit((_Atomic T *)p, value, memory_order_relaxed);                                            \
    }                                                                                                                  \
    static inline void store_release_##name(T *p, T value) {                                                           \
        atomic_store_explicit((_Atomic T *)p, value, memory_order_release);                                            \
    }                                                                                                                  \
    static inline bool compare_swap_##name(T *p, T expected, T desired) {                                              \
        return atomic_compare_exchange_strong_explicit((_Atomic T *)p, &expected, desired, memory_order_acq_rel,       \
                                                       memory_order_acquire);                                          \
    }

SHMRING_WORD(uint32_t, u32)
SHMRING_WORD(uint64_t, u64)

#undef SHMRING_WORD

static inline uint64_t add_one_u64(uint64_t *p) {
    return atomic_fetch_add_explicit((_Atomic uint64_t *)p, 1, memory_order_relaxed);
}

static inline uint32_t subtract_one_u32(uint32_t *p) {
    return atomic_fetch_sub_explicit((_Atomic uint32_t *)p, 1, memory_order_acq_rel) - 1;
}

static inline uint32_t add_u32(uint32_t *p, uint32_t n) {
    return atomic_fetch_add_explicit((_Atomic uint32_t *)p, n, memory_order_acq_rel);
}

static inline void full_fence(void) { atomic_thread_fence(memory_order_seq_cst); }

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory"); /* yield is a no-op on most cores; isb takes about as long as pause */
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

#endif
