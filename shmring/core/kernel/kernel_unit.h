/* The common beginning of kernels_*.c, before their target regions. */
#ifndef SHMRING_KERNEL_UNIT_H
#define SHMRING_KERNEL_UNIT_H

#define SHMRING_KERNEL_UNIT
#include "copy.h"
#include "dispatch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "16-bit lanes and complex parts are taken from words");

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

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

#endif
