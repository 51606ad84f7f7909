/* The kernels of every instruction set in one binary, and the choice among them.
 *
 * vectors.h and kernels.h are compiled once per set inside a target region, so nothing outside of it can use an
 * instruction the machine may lack, and no per-file compiler flags are needed. Included by arrays/reduce.pyx alone.
 *
 * The sets, narrowest first:
 *   baseline   what the ABI promises: SSE2 on x86-64, NEON on AArch64
 *   avx2       AVX2 and F16C. FMA is not asked for: a fused multiply-add would round once where baseline rounds twice
 *   avx512     AVX-512 F, BW, DQ, VL, with 512-bit vectors
 */
#ifndef SHMRING_DISPATCH_H
#define SHMRING_DISPATCH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "folds.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "16-bit lanes and complex parts are taken from words");

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

typedef void (*copy_kernel)(void *dst, const void *src, size_t nbytes);

/* The numbers of dtypes.py, in its order (tests/unit/arrays/test_reduce.py finds any difference). */
enum {
    FLOAT64, FLOAT32, FLOAT16, BFLOAT16, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, BOOL, COMPLEX64,
    COMPLEX128, NDTYPES
};
enum { SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR, LAND, LOR, NOPS };

#define INLINE static inline __attribute__((always_inline))
#define ISA_GLUE(NAME, SET) NAME##_##SET
#define ISA_PASTE(NAME, SET) ISA_GLUE(NAME, SET)
#define ISA(NAME) ISA_PASTE(NAME, SET)

/* Words at any address, and the first nbytes (below 8) of one. */
INLINE uint64_t load_word(const char *p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

INLINE void store_word(char *p, uint64_t w) { memcpy(p, &w, 8); }

INLINE uint64_t load_word_part(const char *p, size_t nbytes) {
    uint64_t w = 0;
    uint32_t four;
    uint16_t two;
    if (nbytes & 1) w = (uint8_t)p[nbytes & 6];
    if (nbytes & 2) memcpy(&two, p + (nbytes & 4), 2), w = w << 16 | two;
    if (nbytes & 4) memcpy(&four, p, 4), w = w << 32 | four;
    return w;
}

INLINE void store_word_part(char *p, uint64_t w, size_t nbytes) {
    if (nbytes & 4) memcpy(p, &w, 4), w >>= 32, p += 4;
    if (nbytes & 2) memcpy(p, &w, 2), w >>= 16, p += 2;
    if (nbytes & 1) *p = (char)w;
}

#define SET baseline
#define VB 16
#include "vectors.h"
#include "kernels.h"
#undef SET
#undef VB

#if defined(__x86_64__)

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
#define SET avx2
#define VB 32
#include "vectors.h"
#include "kernels.h"
#undef SET
#undef VB
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define SET avx512
#define VB 64
#include "vectors.h"
#include "kernels.h"
#undef SET
#undef VB
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

typedef const reduce_kernel (*kernel_table)[NDTYPES];
typedef const carrier_t (*carrier_table)[NDTYPES];

/* The built-ins ask the processor and whether the system saves the registers; "f16c" they know only of late. */
static int runs_baseline(void) { return 1; }
#if defined(__x86_64__)
static int runs_avx2(void) {
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
static int runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

typedef struct {
    const char *name;
    kernel_table kernels;
    carrier_table carriers;
    copy_kernel copy;
    int (*runs)(void);
} kernel_set;

static const kernel_set kernel_sets[] = {
    {"baseline", kernels_baseline, carriers_baseline, copy_baseline, runs_baseline},
#if defined(__x86_64__)
    {"avx2", kernels_avx2, carriers_avx2, copy_avx2, runs_avx2},
    {"avx512", kernels_avx512, carriers_avx512, copy_avx512, runs_avx512},
#endif
};

enum { NKERNEL_SETS = sizeof kernel_sets / sizeof kernel_sets[0] };

static reduce_kernel kernel_of(int set, int op, int dtype) {
    if (op < 0 || op >= NOPS || dtype < 0 || dtype >= NDTYPES) return NULL;
    return kernel_sets[set].kernels[op][dtype];
}

/* NULL: the kernel of the whole makes the parts. */
static const carrier_t *carrier_of(int set, int op, int dtype) {
    if (op < 0 || op >= NOPS || dtype < 0 || dtype >= NDTYPES) return NULL;
    const carrier_t *found = &kernel_sets[set].carriers[op][dtype];
    return found->opens ? found : NULL;
}

#endif
