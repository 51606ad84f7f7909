/* The kernels of every instruction set in one binary, and the choice among them.
 *
 * kernels_baseline.c, kernels_avx2.c and kernels_avx512.c compile vectors.h and kernels.h once each, inside a target
 * region, so nothing outside of it can use an instruction the machine may lack, and no compiler flags per file are
 * needed. Included by core/kernel/reduce.pyx and, for the lists, by the three.
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
#include "numbers.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

typedef void (*copy_kernel)(void *dst, const void *src, size_t nbytes);

/* The numbers of dtypes.py. */
#define NUMBER(NAME) NAME,
enum { SHMRING_DTYPES(NUMBER) NDTYPES };
enum { SHMRING_OPS(NUMBER) NOPS };
#undef NUMBER

/* One instruction set's kernels: defined in its own file. */
#define SHMRING_KERNELS_OF(SET)                                                                                        \
    extern const reduce_kernel kernels_##SET[NOPS][NDTYPES];                                                           \
    extern const carrier_t carriers_##SET[NOPS][NDTYPES];                                                              \
    void copy_##SET(void *dst, const void *src, size_t nbytes);                                                        \
    void copy_ahead_##SET(void *dst, const void *src, size_t nbytes);

SHMRING_KERNELS_OF(baseline)
#if defined(__x86_64__)
SHMRING_KERNELS_OF(avx2)
SHMRING_KERNELS_OF(avx512)
#endif

#ifndef SHMRING_KERNEL_UNIT

typedef const reduce_kernel (*kernel_table)[NDTYPES];
typedef const carrier_t (*carrier_table)[NDTYPES];

/* The built-ins check the processor and the system. Older compilers do not know "f16c". */
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
    copy_kernel copy_ahead;
    int (*runs)(void);
} kernel_set;

static const kernel_set kernel_sets[] = {
    {"baseline", kernels_baseline, carriers_baseline, copy_baseline, copy_ahead_baseline, runs_baseline},
#if defined(__x86_64__)
    {"avx2", kernels_avx2, carriers_avx2, copy_avx2, copy_ahead_avx2, runs_avx2},
    {"avx512", kernels_avx512, carriers_avx512, copy_avx512, copy_ahead_avx512, runs_avx512},
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

#endif
