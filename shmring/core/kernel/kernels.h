/* The reduction loops, each once; included once per instruction set by kernels_*.c, after vectors.h.
 *
 * A kernel folds in rank order: acc = src[0], then acc = acc OP src[j] for j = 1 .. nsrc-1. An accumulator stays in
 * registers until all sources are in, so each source byte is read once and each result byte written once. All loads
 * of a tile precede its stores: dst may be any one of the sources.
 *
 * What a fold is made of: WIDEN (a vector as it lies in memory -> accumulator), OP, NARROW (back; knows how many
 * operands the whole fold has).
 *
 * A fold may be made in parts: one opens it, each further one carries it on from the prefix that the one before stored,
 * src[0] here, and the last one closes it. All parts together do to an element what one kernel does, in the same order.
 */

/* A plain loop, not memcpy: for large copies memcpy uses `rep movsb` on some processors, which is several times slower
 * where source and destination have the same offset in their pages, and leaves the lines so that the next stores of
 * the core that wrote them are expensive (docs/maintainers/kernels.md). */
void ISA(copy)(void *dst, const void *src, size_t nbytes) {
    char *to = (char *)dst;
    const char *from = (const char *)src;
    size_t head = -(uintptr_t)to & 63;
    if (head && nbytes >= 1024) { /* whole lines are stored */
        memcpy(to, from, head);
        to += head, from += head, nbytes -= head;
    }
    for (; nbytes >= 4 * VB; to += 4 * VB, from += 4 * VB, nbytes -= 4 * VB) {
        VU8 a = ISA(load)(from), b = ISA(load)(from + VB), c = ISA(load)(from + 2 * VB), d = ISA(load)(from + 3 * VB);
        ISA(store)(to, a);
        ISA(store)(to + VB, b);
        ISA(store)(to + 2 * VB, c);
        ISA(store)(to + 3 * VB, d);
    }
    memcpy(to, from, nbytes); /* less than four vectors */
}

/* As copy, with the destination's lines prefetched for writing, and lines of two places in turn, as the hardware
 * prefetchers follow each page for itself. No line beyond the end is asked for: a rank may be reading it. */
void ISA(copy_ahead)(void *dst, const void *src, size_t nbytes) {
    char *to = (char *)dst;
    const char *from = (const char *)src;
    size_t head = -(uintptr_t)to & 63;
    if (nbytes >= SHMRING_TURN_NBYTES) {
        memcpy(to, from, head);
        to += head, from += head, nbytes -= head;
    }
    while (nbytes >= SHMRING_TURN_NBYTES) {
        size_t half = nbytes / 2 < SHMRING_TURN_NBYTES ? nbytes / 2 & -(size_t)64 : SHMRING_TURN_NBYTES;
        for (size_t at = 0; at < SHMRING_AHEAD_NBYTES; at += 64) {
            ask_for_line(to + at);
            ask_for_line(to + half + at);
        }
        for (size_t at = 0; at < half; at += 64) {
            size_t ahead = half - at > SHMRING_AHEAD_NBYTES ? at + SHMRING_AHEAD_NBYTES : at;
            VU8 one[64 / VB], two[64 / VB];
            ask_for_line(to + ahead);
            ask_for_line(to + half + ahead);
#pragma GCC unroll 4
            for (int v = 0; v < 64 / VB; v++) {
                one[v] = ISA(load)(from + at + v * VB);
                two[v] = ISA(load)(from + half + at + v * VB);
            }
#pragma GCC unroll 4
            for (int v = 0; v < 64 / VB; v++) {
                ISA(store)(to + at + v * VB, one[v]);
                ISA(store)(to + half + at + v * VB, two[v]);
            }
        }
        to += 2 * half, from += 2 * half, nbytes -= 2 * half;
    }
    ISA(copy)(to, from, nbytes);
}

/* Four accumulators per tile hide the latency of OP. With a constant nsrc (2, 3, 4: the usual ones) the inner loop over
 * tiles disappears; otherwise a step of it costs one pointer load per tile. What is left after the tiles is short. */
#define FOLD(NAME, ITEM, ACC, WIDEN, OP, NARROW)                                                                       \
    /* Folds whole tiles; returns the number of bytes done. */                                                         \
    INLINE size_t ISA(NAME##_tiles)(char *dst, const char *const *src, int nsrc, size_t nbytes, int total) {           \
        (void)total;                                                                                                   \
        size_t at = 0;                                                                                                 \
        for (; nbytes - at >= 4 * VB; at += 4 * VB) {                                                                  \
            const char *s = src[0] + at;                                                                               \
            ACC a0 = WIDEN(ISA(load)(s)), a1 = WIDEN(ISA(load)(s + VB));                                               \
            ACC a2 = WIDEN(ISA(load)(s + 2 * VB)), a3 = WIDEN(ISA(load)(s + 3 * VB));                                  \
            for (int j = 1; j < nsrc; j++) {                                                                           \
                s = src[j] + at;                                                                                       \
                a0 = OP(a0, WIDEN(ISA(load)(s)));                                                                      \
                a1 = OP(a1, WIDEN(ISA(load)(s + VB)));                                                                 \
                a2 = OP(a2, WIDEN(ISA(load)(s + 2 * VB)));                                                             \
                a3 = OP(a3, WIDEN(ISA(load)(s + 3 * VB)));                                                             \
            }                                                                                                          \
            ISA(store)(dst + at, (VU8)NARROW(a0, total));                                                              \
            ISA(store)(dst + at + VB, (VU8)NARROW(a1, total));                                                         \
            ISA(store)(dst + at + 2 * VB, (VU8)NARROW(a2, total));                                                     \
            ISA(store)(dst + at + 3 * VB, (VU8)NARROW(a3, total));                                                     \
        }                                                                                                              \
        return at;                                                                                                     \
    }                                                                                                                  \
    static void ISA(NAME##_fold)(char *dst, const char *const *src, int nsrc, size_t nbytes, int total) {              \
        size_t at;                                                                                                     \
        switch (nsrc) {                                                                                                \
            case 2: at = ISA(NAME##_tiles)(dst, src, 2, nbytes, total); break;                                         \
            case 3: at = ISA(NAME##_tiles)(dst, src, 3, nbytes, total); break;                                         \
            case 4: at = ISA(NAME##_tiles)(dst, src, 4, nbytes, total); break;                                         \
            default: at = ISA(NAME##_tiles)(dst, src, nsrc, nbytes, total);                                            \
        }                                                                                                              \
        for (; at < nbytes; at += VB) {                                                                                \
            size_t rest = nbytes - at;                                                                                 \
            ACC acc;                                                                                                   \
            if (rest >= VB) {                                                                                          \
                acc = WIDEN(ISA(load)(src[0] + at));                                                                   \
                for (int j = 1; j < nsrc; j++) acc = OP(acc, WIDEN(ISA(load)(src[j] + at)));                           \
                ISA(store)(dst + at, (VU8)NARROW(acc, total));                                                         \
            } else {                                                                                                   \
                acc = WIDEN(ISA(load_part)(src[0] + at, rest));                                                        \
                for (int j = 1; j < nsrc; j++) acc = OP(acc, WIDEN(ISA(load_part)(src[j] + at, rest)));                \
                ISA(store_part)(dst + at, (VU8)NARROW(acc, total), rest);                                              \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void ISA(NAME)(void *dst, const void *const *src, int nsrc, size_t count) {                                 \
        ISA(NAME##_fold)(dst, (const char *const *)src, nsrc, count * sizeof(ITEM), nsrc);                             \
    }

/* The same kernel on items `times` as large: a complex sum is a sum of parts, a band a band of bytes. */
#define SHARE(NAME, OF, TIMES)                                                                                         \
    static void ISA(NAME)(void *dst, const void *const *src, int nsrc, size_t count) {                                 \
        ISA(OF)(dst, src, nsrc, count * (TIMES));                                                                      \
    }

#define ADD(a, b) ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define XOR(a, b) ((a) ^ (b))
#define AS_IS(acc, total) (acc)

/* Floats. */
#define MEAN_F32(acc, total) ISA(canonical_f32)((acc) / (float)(total))
#define MEAN_F64(acc, total) ISA(canonical_f64)((acc) / (double)(total))
#define CANONICAL_F32(acc, total) ISA(canonical_f32)(acc)
#define CANONICAL_F64(acc, total) ISA(canonical_f64)(acc)

FOLD(sum_f32, float, VF32, (VF32), ADD, CANONICAL_F32)
FOLD(sum_f64, double, VF64, (VF64), ADD, CANONICAL_F64)
FOLD(prod_f32, float, VF32, (VF32), MULTIPLY, CANONICAL_F32)
FOLD(prod_f64, double, VF64, (VF64), MULTIPLY, CANONICAL_F64)
FOLD(avg_f32, float, VF32, (VF32), ADD, MEAN_F32)
FOLD(avg_f64, double, VF64, (VF64), ADD, MEAN_F64)

/* Narrow floats: float32 all the way, rounded once. What an accumulator of several vectors does, its halves do. */
INLINE VF32 ISA(add_vector)(VF32 a, VF32 b) { return a + b; }
INLINE VF32 ISA(multiply_vector)(VF32 a, VF32 b) { return a * b; }
INLINE VF32 ISA(mean_vector)(VF32 a, float total) { return a / total; }

#define HALVES(NAME, ACC, OF)                                                                                          \
    INLINE ACC ISA(add_##NAME)(ACC a, ACC b) {                                                                         \
        return (ACC){ISA(add_##OF)(a.one, b.one), ISA(add_##OF)(a.two, b.two)};                                        \
    }                                                                                                                  \
    INLINE ACC ISA(multiply_##NAME)(ACC a, ACC b) {                                                                    \
        return (ACC){ISA(multiply_##OF)(a.one, b.one), ISA(multiply_##OF)(a.two, b.two)};                              \
    }                                                                                                                  \
    INLINE ACC ISA(mean_##NAME)(ACC a, float total) {                                                                  \
        return (ACC){ISA(mean_##OF)(a.one, total), ISA(mean_##OF)(a.two, total)};                                      \
    }

HALVES(pair, PAIR, vector)
HALVES(quad, QUAD, pair)

/* Their parts: a prefix is float32, in the order of the elements. */
#define PARTS(NAME, FORM, ITEM, ACC, WIDE, OP, INLINED)                                                                \
    INLINED void ISA(NAME##_part)(char *dst, const char *const *src, int nsrc, size_t nbytes, int opens, int closes,   \
                                  float divisor) {                                                                     \
        enum { WIDER = sizeof(float) / sizeof(ITEM) };                                                                 \
        size_t at = 0;                                                                                                 \
        for (; nbytes - at >= 2 * VB; at += 2 * VB) {                                                                  \
            const char *s = src[0] + (opens ? at : WIDER * at);                                                        \
            ACC a0 = opens ? ISA(widen_##FORM)(ISA(load)(s)) : ISA(load_wide_##FORM)(s);                               \
            ACC a1 = opens ? ISA(widen_##FORM)(ISA(load)(s + VB)) : ISA(load_wide_##FORM)(s + WIDER * VB);             \
            for (int j = 1; j < nsrc; j++) {                                                                           \
                s = src[j] + at;                                                                                       \
                a0 = OP(a0, ISA(widen_##FORM)(ISA(load)(s)));                                                          \
                a1 = OP(a1, ISA(widen_##FORM)(ISA(load)(s + VB)));                                                     \
            }                                                                                                          \
            if (closes) {                                                                                              \
                ISA(store)(dst + at, ISA(narrow_##FORM)(divisor ? ISA(mean_##WIDE)(a0, divisor) : a0));                \
                ISA(store)(dst + at + VB, ISA(narrow_##FORM)(divisor ? ISA(mean_##WIDE)(a1, divisor) : a1));           \
            } else {                                                                                                   \
                ISA(store_wide_##FORM)(dst + WIDER * at, a0);                                                          \
                ISA(store_wide_##FORM)(dst + WIDER * (at + VB), a1);                                                   \
            }                                                                                                          \
        }                                                                                                              \
        while (at < nbytes) {                                                                                          \
            char room[WIDER * VB] = {0};                                                                               \
            size_t rest = nbytes - at < VB ? nbytes - at : VB;                                                         \
            memcpy(room, src[0] + (opens ? at : WIDER * at), opens ? rest : WIDER * rest);                             \
            ACC acc = opens ? ISA(widen_##FORM)(ISA(load)(room)) : ISA(load_wide_##FORM)(room);                        \
            for (int j = 1; j < nsrc; j++) {                                                                           \
                memcpy(room, src[j] + at, rest);                                                                       \
                acc = OP(acc, ISA(widen_##FORM)(ISA(load)(room)));                                                     \
            }                                                                                                          \
            if (closes)                                                                                                \
                ISA(store)(room, ISA(narrow_##FORM)(divisor ? ISA(mean_##WIDE)(acc, divisor) : acc));                  \
            else                                                                                                       \
                ISA(store_wide_##FORM)(room, acc);                                                                     \
            memcpy(dst + (closes ? at : WIDER * at), room, closes ? rest : WIDER * rest);                              \
            at += rest;                                                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static void ISA(NAME##_opens)(void *dst, const void *const *src, int nsrc, size_t count) {                         \
        ISA(NAME##_part)(dst, (const char *const *)src, nsrc, count * sizeof(ITEM), 1, 0, 0);                          \
    }                                                                                                                  \
    static void ISA(NAME##_carries)(void *dst, const void *const *src, int nsrc, size_t count) {                       \
        ISA(NAME##_part)(dst, (const char *const *)src, nsrc, count * sizeof(ITEM), 0, 0, 0);                          \
    }                                                                                                                  \
    static void ISA(NAME##_closes)(void *dst, const void *const *src, int nsrc, size_t count, int total) {             \
        (void)total;                                                                                                   \
        ISA(NAME##_part)(dst, (const char *const *)src, nsrc, count * sizeof(ITEM), 0, 1, 0);                          \
    }

/* A prefix of an average is a sum; the rank that closes it divides. */
#define PARTS_OF(FORM, ITEM, ACC, WIDE, INLINED)                                                                       \
    PARTS(sum_##FORM, FORM, ITEM, ACC, WIDE, ISA(add_##WIDE), INLINED)                                                 \
    PARTS(prod_##FORM, FORM, ITEM, ACC, WIDE, ISA(multiply_##WIDE), INLINED)                                           \
    static void ISA(avg_##FORM##_closes)(void *dst, const void *const *src, int nsrc, size_t count, int total) {       \
        ISA(sum_##FORM##_part)(dst, (const char *const *)src, nsrc, count * sizeof(ITEM), 0, 1, (float)total);         \
    }

#define FLOAT_16(FORM)                                                                                                 \
    INLINE VU8 ISA(rounded_##FORM)(PAIR acc, int total) {                                                              \
        (void)total;                                                                                                   \
        return ISA(narrow_##FORM)(acc);                                                                                \
    }                                                                                                                  \
    INLINE VU8 ISA(divided_##FORM)(PAIR acc, int total) {                                                              \
        return ISA(narrow_##FORM)(ISA(mean_pair)(acc, (float)total));                                                  \
    }                                                                                                                  \
    FOLD(sum_##FORM, uint16_t, PAIR, ISA(widen_##FORM), ISA(add_pair), ISA(rounded_##FORM))                            \
    FOLD(prod_##FORM, uint16_t, PAIR, ISA(widen_##FORM), ISA(multiply_pair), ISA(rounded_##FORM))                      \
    FOLD(avg_##FORM, uint16_t, PAIR, ISA(widen_##FORM), ISA(add_pair), ISA(divided_##FORM))                            \
    PARTS_OF(FORM, uint16_t, PAIR, pair, INLINE)

/* Conversions are long: one loop makes the wholes and the parts, and is there once. */
#define WHOLE_8(NAME, OF, DIVISOR)                                                                                     \
    static void ISA(NAME)(void *dst, const void *const *src, int nsrc, size_t count) {                                 \
        ISA(OF##_part)(dst, (const char *const *)src, nsrc, count, 1, 1, DIVISOR);                                     \
    }
#define FLOAT_8(FORM)                                                                                                  \
    PARTS_OF(FORM, uint8_t, QUAD, quad, static __attribute__((noinline)))                                              \
    WHOLE_8(sum_##FORM, sum_##FORM, 0)                                                                                 \
    WHOLE_8(prod_##FORM, prod_##FORM, 0)                                                                               \
    WHOLE_8(avg_##FORM, sum_##FORM, (float)nsrc)

FLOAT_16(f16)
FLOAT_16(bf16)
FLOAT_8(e4m3fn)
FLOAT_8(e5m2)

/* Complex: sums and averages by parts; products need the neighbour. With x = a + bi and y = c + di: x*y holds ac and
 * bd, x*swap(y) holds ad and bc. */
#define REAL_32 (0xffffffffu - (VU64){0})

INLINE VU64 ISA(multiply_c64)(VU64 x, VU64 y) {
    VU64 straight = (VU64)((VF32)x * (VF32)y), crossed = (VU64)((VF32)x * (VF32)ISA(swap_32)(y));
    VU64 real = (VU64)((VF32)straight - (VF32)ISA(swap_32)(straight));
    VU64 imag = (VU64)((VF32)crossed + (VF32)ISA(swap_32)(crossed));
    return ISA(pick)(REAL_32, real, imag);
}

INLINE VU64 ISA(multiply_c128)(VU64 x, VU64 y) {
    VU64 straight = (VU64)((VF64)x * (VF64)y), crossed = (VU64)((VF64)x * (VF64)ISA(swap_64)(y));
    VU64 real = (VU64)((VF64)straight - (VF64)ISA(swap_64)(straight));
    VU64 imag = (VU64)((VF64)crossed + (VF64)ISA(swap_64)(crossed));
    return ISA(pick)(REAL_64, real, imag);
}

#define CANONICAL_C64(acc, total) ISA(canonical_f32)((VF32)(acc))
#define CANONICAL_C128(acc, total) ISA(canonical_f64)((VF64)(acc))

SHARE(sum_c64, sum_f32, 2)
SHARE(sum_c128, sum_f64, 2)
SHARE(avg_c64, avg_f32, 2)
SHARE(avg_c128, avg_f64, 2)
FOLD(prod_c64, uint64_t, VU64, (VU64), ISA(multiply_c64), CANONICAL_C64)
FOLD(prod_c128, uint64_t[2], VU64, (VU64), ISA(multiply_c128), CANONICAL_C128)

/* Likewise. */
#define MEAN(NAME, OF, NBYTES)                                                                                         \
    static void ISA(NAME##_closes)(void *dst, const void *const *src, int nsrc, size_t count, int total) {             \
        ISA(OF##_fold)(dst, (const char *const *)src, nsrc, count * (NBYTES), total);                                  \
    }

MEAN(avg_f32, avg_f32, 4)
MEAN(avg_f64, avg_f64, 8)
MEAN(avg_c64, avg_f32, 8)
MEAN(avg_c128, avg_f64, 16)

/* Integers wrap, and wrap alike whether signed or not: unsigned arithmetic serves both. */
FOLD(sum_8, uint8_t, VU8, (VU8), ADD, AS_IS)
FOLD(sum_16, uint16_t, VU16, (VU16), ADD, AS_IS)
FOLD(sum_32, uint32_t, VU32, (VU32), ADD, AS_IS)
FOLD(sum_64, uint64_t, VU64, (VU64), ADD, AS_IS)
FOLD(prod_8, uint8_t, VU8, (VU8), MULTIPLY, AS_IS)
FOLD(prod_16, uint16_t, VU16, (VU16), MULTIPLY, AS_IS)
FOLD(prod_32, uint32_t, VU32, (VU32), MULTIPLY, AS_IS)
FOLD(prod_64, uint64_t, VU64, (VU64), MULTIPLY, AS_IS)

/* Smallest and largest. Of equal values (-0 and +0 are equal) the accumulator is kept, hence that of the lowest rank. If
 * there are NaNs, the first in rank order is the result. No arithmetic: the result is one of the inputs, bit for bit. */
#define EXTREME(OP, TYPE, ITEM, V, STAYS)                                                                              \
    INLINE V ISA(OP##_of_##TYPE)(V a, V b) { return (V)ISA(pick)((VU64)(STAYS), (VU64)a, (VU64)b); }                   \
    FOLD(OP##_##TYPE, ITEM, V, (V), ISA(OP##_of_##TYPE), AS_IS)
#define EXTREMES(TYPE, ITEM, V)                                                                                        \
    EXTREME(min, TYPE, ITEM, V, a <= b)                                                                                \
    EXTREME(max, TYPE, ITEM, V, a >= b)
/* The largest of magnitudes: without their signs, as that is. */
INLINE VF32 ISA(abs_f32)(VU8 raw) { return (VF32)((VU32)raw & 0x7fffffffu); }
INLINE VF64 ISA(abs_f64)(VU8 raw) { return (VF64)((VU64)raw & 0x7fffffffffffffffu); }
#define EXTREMES_FLOAT(TYPE, ITEM, V)                                                                                  \
    EXTREME(min, TYPE, ITEM, V, ISA(mask)((VU64)(a <= b)) | ISA(mask)((VU64)(a != a)))                                 \
    EXTREME(max, TYPE, ITEM, V, ISA(mask)((VU64)(a >= b)) | ISA(mask)((VU64)(a != a)))                                 \
    FOLD(absmax_##TYPE, ITEM, V, ISA(abs_##TYPE), ISA(max_of_##TYPE), AS_IS)

/* Narrow floats need no conversion to be compared: sign and magnitude make an integer, the key, that orders as they
 * do, both zeros alike. What lies beyond infinity is a NaN, and gets the key that beats all. */
#define KEYED(NBITS, V)                                                                                                \
    typedef struct {                                                                                                   \
        V key;                                                                                                         \
        VU8 value;                                                                                                     \
    } ISA(keyed_##NBITS);                                                                                              \
    INLINE ISA(keyed_##NBITS) ISA(keyed_of_##NBITS)(VU8 raw, int##NBITS##_t infinity, int##NBITS##_t nan_key) {        \
        V magnitude = (V)raw & INT##NBITS##_MAX, sign = (V)raw < 0;                                                    \
        V key = (magnitude ^ sign) - sign;                                                                             \
        VU64 is_nan = (VU64)(magnitude > infinity);                                                                    \
        return (ISA(keyed_##NBITS)){(V)ISA(pick)(is_nan, (VU64)(nan_key - (V){0}), (VU64)key), raw};                   \
    }                                                                                                                  \
    INLINE ISA(keyed_##NBITS) ISA(pick_##NBITS)(VU64 yes, ISA(keyed_##NBITS) a, ISA(keyed_##NBITS) b) {                \
        return (ISA(keyed_##NBITS)){(V)ISA(pick)(yes, (VU64)a.key, (VU64)b.key),                                       \
                                    (VU8)ISA(pick)(yes, (VU64)a.value, (VU64)b.value)};                                \
    }                                                                                                                  \
    INLINE ISA(keyed_##NBITS) ISA(least_##NBITS)(ISA(keyed_##NBITS) a, ISA(keyed_##NBITS) b) {                         \
        return ISA(pick_##NBITS)((VU64)(a.key <= b.key), a, b);                                                        \
    }                                                                                                                  \
    INLINE ISA(keyed_##NBITS) ISA(greatest_##NBITS)(ISA(keyed_##NBITS) a, ISA(keyed_##NBITS) b) {                      \
        return ISA(pick_##NBITS)((VU64)(a.key >= b.key), a, b);                                                        \
    }
#define EXTREMES_KEYED(FORM, NBITS, INFINITE)                                                                          \
    INLINE ISA(keyed_##NBITS) ISA(min_key_##FORM)(VU8 raw) {                                                           \
        return ISA(keyed_of_##NBITS)(raw, INFINITE, INT##NBITS##_MIN);                                                 \
    }                                                                                                                  \
    INLINE ISA(keyed_##NBITS) ISA(max_key_##FORM)(VU8 raw) {                                                           \
        return ISA(keyed_of_##NBITS)(raw, INFINITE, INT##NBITS##_MAX);                                                 \
    }                                                                                                                  \
    FOLD(min_##FORM, uint##NBITS##_t, ISA(keyed_##NBITS), ISA(min_key_##FORM), ISA(least_##NBITS), VALUE)              \
    FOLD(max_##FORM, uint##NBITS##_t, ISA(keyed_##NBITS), ISA(max_key_##FORM), ISA(greatest_##NBITS), VALUE)           \
    INLINE ISA(keyed_##NBITS) ISA(absmax_key_##FORM)(VU8 raw) {                                                        \
        return ISA(max_key_##FORM)((VU8)((VU##NBITS)raw & INT##NBITS##_MAX));                                          \
    }                                                                                                                  \
    FOLD(absmax_##FORM, uint##NBITS##_t, ISA(keyed_##NBITS), ISA(absmax_key_##FORM), ISA(greatest_##NBITS), VALUE)
#define VALUE(acc, total) ((acc).value)

KEYED(8, VI8)
KEYED(16, VI16)
EXTREMES_KEYED(f16, 16, 0x7c00)
EXTREMES_KEYED(bf16, 16, 0x7f80)
EXTREMES_KEYED(e4m3fn, 8, 0x7e)
EXTREMES_KEYED(e5m2, 8, 0x7c)
EXTREMES_FLOAT(f32, float, VF32)
EXTREMES_FLOAT(f64, double, VF64)
EXTREMES(i8, int8_t, VI8)
EXTREMES(i16, int16_t, VI16)
EXTREMES(i32, int32_t, VI32)
EXTREMES(i64, int64_t, VI64)
EXTREMES(u8, uint8_t, VU8)
EXTREMES(u16, uint16_t, VU16)
EXTREMES(u32, uint32_t, VU32)
EXTREMES(u64, uint64_t, VU64)

/* Bitwise: bytes, however they are grouped. */
FOLD(band_8, uint8_t, VU8, (VU8), AND, AS_IS)
FOLD(bor_8, uint8_t, VU8, (VU8), OR, AS_IS)
FOLD(bxor_8, uint8_t, VU8, (VU8), XOR, AS_IS)
#define BYTEWISE(OP, NBYTES) SHARE(OP##_##NBYTES##_bytes, OP##_8, NBYTES)
BYTEWISE(band, 2) BYTEWISE(band, 4) BYTEWISE(band, 8)
BYTEWISE(bor, 2) BYTEWISE(bor, 4) BYTEWISE(bor, 8)
BYTEWISE(bxor, 2) BYTEWISE(bxor, 4) BYTEWISE(bxor, 8)

/* Logical: v != 0, where -0 is zero and a NaN is not; the result is ONE or zero. Integer tests, so a thread that
 * takes denormals for zeros gets the same truth. */
#define LOGICAL(TYPE, ITEM, V, TRUTH, ONE)                                                                             \
    INLINE V ISA(truth_##TYPE)(VU8 raw) {                                                                              \
        V v = (V)raw;                                                                                                  \
        return (V)((TRUTH) != 0);                                                                                      \
    }                                                                                                                  \
    INLINE V ISA(number_##TYPE)(V truth, int total) {                                                                  \
        (void)total;                                                                                                   \
        return truth & (ONE);                                                                                          \
    }                                                                                                                  \
    FOLD(land_##TYPE, ITEM, V, ISA(truth_##TYPE), AND, ISA(number_##TYPE))                                             \
    FOLD(lor_##TYPE, ITEM, V, ISA(truth_##TYPE), OR, ISA(number_##TYPE))

LOGICAL(8, uint8_t, VU8, v, 1)
LOGICAL(16, uint16_t, VU16, v, 1)
LOGICAL(32, uint32_t, VU32, v, 1)
LOGICAL(64, uint64_t, VU64, v, 1)
LOGICAL(f16, uint16_t, VU16, v & 0x7fff, 0x3c00)
LOGICAL(bf16, uint16_t, VU16, v & 0x7fff, 0x3f80)
LOGICAL(e4m3fn, uint8_t, VU8, v & 0x7f, 0x38)
LOGICAL(e5m2, uint8_t, VU8, v & 0x7f, 0x3c)
LOGICAL(f32, uint32_t, VU32, v & 0x7fffffffu, 0x3f800000u)
LOGICAL(f64, uint64_t, VU64, v & 0x7fffffffffffffffu, 0x3ff0000000000000u)
LOGICAL(c64, uint64_t, VU64, v & 0x7fffffff7fffffffu, 0x3f800000u)
LOGICAL(c128, uint64_t[2], VU64, (v | ISA(swap_64)(v)) & 0x7fffffffffffffffu, REAL_64 & 0x3ff0000000000000u)

/* A bool is any byte; all its operations are logical ones. */
FOLD(bool_xor, uint8_t, VU8, ISA(truth_8), XOR, ISA(number_8))

/* What `find_kernel` looks up. An entry that is not here is NULL: the operation is not defined. */
#define BY_SIGN(OP)                                                                                                    \
    [INT8] = ISA(OP##_i8), [INT16] = ISA(OP##_i16), [INT32] = ISA(OP##_i32), [INT64] = ISA(OP##_i64),                  \
    [UINT8] = ISA(OP##_u8), [UINT16] = ISA(OP##_u16), [UINT32] = ISA(OP##_u32), [UINT64] = ISA(OP##_u64)
#define BY_WIDTH(OP)                                                                                                   \
    [INT8] = ISA(OP##_8), [INT16] = ISA(OP##_16), [INT32] = ISA(OP##_32), [INT64] = ISA(OP##_64),                      \
    [UINT8] = ISA(OP##_8), [UINT16] = ISA(OP##_16), [UINT32] = ISA(OP##_32), [UINT64] = ISA(OP##_64)
#define BY_BYTES(OP)                                                                                                   \
    [INT8] = ISA(OP##_8), [INT16] = ISA(OP##_2_bytes), [INT32] = ISA(OP##_4_bytes), [INT64] = ISA(OP##_8_bytes),       \
    [UINT8] = ISA(OP##_8), [UINT16] = ISA(OP##_2_bytes), [UINT32] = ISA(OP##_4_bytes), [UINT64] = ISA(OP##_8_bytes)
#define FLOATS(OP)                                                                                                     \
    [FLOAT64] = ISA(OP##_f64), [FLOAT32] = ISA(OP##_f32), [FLOAT16] = ISA(OP##_f16), [BFLOAT16] = ISA(OP##_bf16),      \
    [FLOAT8_E4M3FN] = ISA(OP##_e4m3fn), [FLOAT8_E5M2] = ISA(OP##_e5m2)
#define COMPLEXES(OP) [COMPLEX64] = ISA(OP##_c64), [COMPLEX128] = ISA(OP##_c128)
#define ALL_TRUE [BOOL] = ISA(land_8)
#define ANY_TRUE [BOOL] = ISA(lor_8)

const reduce_kernel ISA(kernels)[NOPS][NDTYPES] = {
    [SUM] = {FLOATS(sum), BY_WIDTH(sum), COMPLEXES(sum), ANY_TRUE},
    [PROD] = {FLOATS(prod), BY_WIDTH(prod), COMPLEXES(prod), ALL_TRUE},
    [MIN] = {FLOATS(min), BY_SIGN(min), ALL_TRUE},
    [MAX] = {FLOATS(max), BY_SIGN(max), ANY_TRUE},
    [AVG] = {FLOATS(avg), COMPLEXES(avg)},
    [BAND] = {BY_BYTES(band), ALL_TRUE},
    [BOR] = {BY_BYTES(bor), ANY_TRUE},
    [BXOR] = {BY_BYTES(bxor), [BOOL] = ISA(bool_xor)},
    [LAND] = {FLOATS(land), BY_WIDTH(land), COMPLEXES(land), ALL_TRUE},
    [LOR] = {FLOATS(lor), BY_WIDTH(lor), COMPLEXES(lor), ANY_TRUE},
    [ABSMAX] = {FLOATS(absmax)},
};

/* What `find_carrier` looks up. An entry that is not here is empty: a prefix is a value like all others, and the kernel
 * of the whole makes every part. */
#define CARRIER(PREFIX, WHOLE) {ISA(PREFIX##_opens), ISA(PREFIX##_carries), ISA(WHOLE##_closes)}
#define DIVIDED(SUM, AVG) {ISA(SUM), ISA(SUM), ISA(AVG##_closes)}

#define CARRIERS(PREFIX, WHOLE)                                                                                        \
    [FLOAT16] = CARRIER(PREFIX##_f16, WHOLE##_f16), [BFLOAT16] = CARRIER(PREFIX##_bf16, WHOLE##_bf16),                 \
    [FLOAT8_E4M3FN] = CARRIER(PREFIX##_e4m3fn, WHOLE##_e4m3fn), [FLOAT8_E5M2] = CARRIER(PREFIX##_e5m2, WHOLE##_e5m2)

const carrier_t ISA(carriers)[NOPS][NDTYPES] = {
    [SUM] = {CARRIERS(sum, sum)},
    [PROD] = {CARRIERS(prod, prod)},
    [AVG] = {CARRIERS(sum, avg),
             [FLOAT32] = DIVIDED(sum_f32, avg_f32), [FLOAT64] = DIVIDED(sum_f64, avg_f64),
             [COMPLEX64] = DIVIDED(sum_c64, avg_c64), [COMPLEX128] = DIVIDED(sum_c128, avg_c128)},
};
