/* Vectors of VB bytes for one instruction set; included once per set by kernels_*.c, no include guard on purpose.
 *
 * Written with the vector extensions that GCC and clang share: + - * / & | ^ << >> and comparisons work lane by lane,
 * so one text serves every width, and nothing depends on what an auto-vectoriser makes of it. A comparison gives
 * lanes of all ones or all zeros. Everything named here carries the instruction set's suffix, see ISA.
 *
 *   load, store              VB bytes at any address
 *   load_part, store_part    the first 0 < nbytes < VB of them; the other lanes come as zeros and are not written
 *   mask                     a comparison's result, made opaque
 *   pick                     a where yes is all ones, b where it is zero
 *   swap_*                   exchange neighbouring lanes: the real and the imaginary part
 *   widen_*, narrow_*        16-bit floats to two vectors of float32, and back with one rounding to nearest even
 *   load_wide_*, store_wide_*   such a pair as float32 in the order of the elements, 2 VB bytes
 */
#define VU8 ISA(vu8)
#define VU16 ISA(vu16)
#define VU32 ISA(vu32)
#define VU64 ISA(vu64)
#define VI8 ISA(vi8)
#define VI16 ISA(vi16)
#define VI32 ISA(vi32)
#define VI64 ISA(vi64)
#define VF32 ISA(vf32)
#define VF64 ISA(vf64)
#define PAIR ISA(pair)
#define ANYWHERE ISA(anywhere)

typedef uint8_t VU8 __attribute__((vector_size(VB)));
typedef uint16_t VU16 __attribute__((vector_size(VB)));
typedef uint32_t VU32 __attribute__((vector_size(VB)));
typedef uint64_t VU64 __attribute__((vector_size(VB)));
typedef int8_t VI8 __attribute__((vector_size(VB)));
typedef int16_t VI16 __attribute__((vector_size(VB)));
typedef int32_t VI32 __attribute__((vector_size(VB)));
typedef int64_t VI64 __attribute__((vector_size(VB)));
typedef float VF32 __attribute__((vector_size(VB)));
typedef double VF64 __attribute__((vector_size(VB)));

/* 16-bit floats take twice the room once widened, 8-bit ones four times. Only widen and narrow know in which lane of
 * which vector an element lies: they agree, and everything in between works lane by lane. */
typedef struct {
    VF32 one, two;
} PAIR;

typedef struct {
    PAIR one, two;
} QUAD;

/* An array may start anywhere and hold any type. */
typedef uint64_t ANYWHERE __attribute__((vector_size(VB), aligned(1), may_alias));

INLINE VU8 ISA(load)(const char *p) { return (VU8) * (const ANYWHERE *)p; }
INLINE void ISA(store)(char *p, VU8 v) { *(ANYWHERE *)p = (ANYWHERE)v; }

#if VB == 64

INLINE VU8 ISA(load_part)(const char *p, size_t nbytes) {
    return (VU8)_mm512_maskz_loadu_epi8(((uint64_t)1 << nbytes) - 1, p);
}

INLINE void ISA(store_part)(char *p, VU8 v, size_t nbytes) {
    _mm512_mask_storeu_epi8(p, ((uint64_t)1 << nbytes) - 1, (__m512i)v);
}

#elif VB == 32

INLINE VU8 ISA(load_part)(const char *p, size_t nbytes) {
    VU64 v = {0};
    if (nbytes & 16) {
        v[0] = load_word(p);
        v[1] = load_word(p + 8);
        if (nbytes & 8) v[2] = load_word(p + 16);
        uint64_t rest = load_word_part(p + (nbytes & ~(size_t)7), nbytes & 7);
        return (VU8)(nbytes & 8 ? (VU64){v[0], v[1], v[2], rest} : (VU64){v[0], v[1], rest, 0});
    }
    if (nbytes & 8) v[0] = load_word(p);
    uint64_t rest = load_word_part(p + (nbytes & 8), nbytes & 7);
    return (VU8)(nbytes & 8 ? (VU64){v[0], rest, 0, 0} : (VU64){rest, 0, 0, 0});
}

INLINE void ISA(store_part)(char *p, VU8 bytes, size_t nbytes) {
    VU64 v = (VU64)bytes;
    if (nbytes & 16) {
        store_word(p, v[0]);
        store_word(p + 8, v[1]);
        v = (VU64){v[2], v[3], 0, 0};
        p += 16;
    }
    if (nbytes & 8) {
        store_word(p, v[0]);
        v = (VU64){v[1], 0, 0, 0};
        p += 8;
    }
    store_word_part(p, v[0], nbytes & 7);
}

#else

INLINE VU8 ISA(load_part)(const char *p, size_t nbytes) {
    if (nbytes & 8) return (VU8)(VU64){load_word(p), load_word_part(p + 8, nbytes & 7)};
    return (VU8)(VU64){load_word_part(p, nbytes), 0};
}

INLINE void ISA(store_part)(char *p, VU8 bytes, size_t nbytes) {
    VU64 v = (VU64)bytes;
    if (nbytes & 8) {
        store_word(p, v[0]);
        store_word_part(p + 8, v[1], nbytes & 7);
    } else {
        store_word_part(p, v[0], nbytes);
    }
}

#endif

/* A mask whose origin the compiler cannot see. Where SSE2 lacks a comparison (64-bit lanes), GCC 12 takes masks apart
 * into scalars as soon as it understands what is done with them. */
INLINE VU64 ISA(mask)(VU64 m) {
#if defined(__x86_64__) && !defined(__clang__)
    __asm__("" : "+v"(m));
#endif
    return m;
}

/* Lanes of two vectors as one twice as long: in turn, and back. */
#undef ZIPPED
#undef UNZIPPED
#if VB == 64
#define ZIPPED(AT) AT, 16 + AT, 1 + AT, 17 + AT, 2 + AT, 18 + AT, 3 + AT, 19 + AT,                                     \
        4 + AT, 20 + AT, 5 + AT, 21 + AT, 6 + AT, 22 + AT, 7 + AT, 23 + AT
#define UNZIPPED(AT) AT, 2 + AT, 4 + AT, 6 + AT, 8 + AT, 10 + AT, 12 + AT, 14 + AT,                                    \
        16 + AT, 18 + AT, 20 + AT, 22 + AT, 24 + AT, 26 + AT, 28 + AT, 30 + AT
#elif VB == 32
#define ZIPPED(AT) AT, 8 + AT, 1 + AT, 9 + AT, 2 + AT, 10 + AT, 3 + AT, 11 + AT
#define UNZIPPED(AT) AT, 2 + AT, 4 + AT, 6 + AT, 8 + AT, 10 + AT, 12 + AT, 14 + AT
#else
#define ZIPPED(AT) AT, 4 + AT, 1 + AT, 5 + AT
#define UNZIPPED(AT) AT, 2 + AT, 4 + AT, 6 + AT
#endif
#ifdef __clang__
#define ISA_LANES(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define ISA_LANES(A, B, ...) __builtin_shuffle(A, B, (VU32){__VA_ARGS__})
#endif

INLINE PAIR ISA(zip)(PAIR v) {
    return (PAIR){ISA_LANES(v.one, v.two, ZIPPED(0)), ISA_LANES(v.one, v.two, ZIPPED(VB / 8))};
}

INLINE PAIR ISA(unzip)(PAIR v) {
    return (PAIR){ISA_LANES(v.one, v.two, UNZIPPED(0)), ISA_LANES(v.one, v.two, UNZIPPED(1))};
}

INLINE PAIR ISA(load_pair)(const char *p) { return (PAIR){(VF32)ISA(load)(p), (VF32)ISA(load)(p + VB)}; }
INLINE void ISA(store_pair)(char *p, PAIR v) { ISA(store)(p, (VU8)v.one), ISA(store)(p + VB, (VU8)v.two); }

/* As one instruction, where there is one: out of the plain expression GCC makes three or five. */
INLINE VU64 ISA(pick)(VU64 yes, VU64 a, VU64 b) {
#if VB == 64
    return (VU64)_mm512_ternarylogic_epi64((__m512i)yes, (__m512i)a, (__m512i)b, 0xca);
#elif VB == 32
    return (VU64)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)yes);
#else
    yes = ISA(mask)(yes);
    return (yes & a) | (~yes & b);
#endif
}

INLINE VU64 ISA(swap_32)(VU64 v) { return v >> 32 | v << 32; }

/* Neighbours of 64 bits, and the lanes that hold real parts. */
#undef NEIGHBOURS
#if VB == 64
#define NEIGHBOURS 1, 0, 3, 2, 5, 4, 7, 6
#elif VB == 32
#define NEIGHBOURS 1, 0, 3, 2
#else
#define NEIGHBOURS 1, 0
#endif
#define REAL_64 (-(1 & (VU64){NEIGHBOURS}))

INLINE VU64 ISA(swap_64)(VU64 v) {
#ifdef __clang__
    return __builtin_shufflevector(v, v, NEIGHBOURS);
#else
    return __builtin_shuffle(v, (VU64){NEIGHBOURS});
#endif
}

/* Which operand's payload survives in a NaN result differs between processors, and a compiler may exchange operands
 * in one loop and not in its tail. So a NaN that arithmetic made leaves a kernel as the one quiet NaN. */
INLINE VF32 ISA(canonical_f32)(VF32 v) {
    VU32 nan = 0x7fc00000u - (VU32){0};
#if VB == 64
    return (VF32)_mm512_mask_mov_ps((__m512)nan, _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_ORD_Q), (__m512)v);
#else
    return (VF32)ISA(pick)((VU64)(v == v), (VU64)v, (VU64)nan);
#endif
}

INLINE VF64 ISA(canonical_f64)(VF64 v) {
    return (VF64)ISA(pick)((VU64)(v == v), (VU64)v, 0x7ff8000000000000u - (VU64){0});
}

/* Floats without conversion instructions: integers, and the float adder where it aligns and rounds for us. One lies in
 * the low `nbits` of each lane, with `nmant` bits of mantissa; exponents move from `bias` to 127. What begins at
 * `special`, as aligned, is no number. A denormal has no leading one: give it one by the exponent of the smallest normal
 * number, and take that number away again, exactly (so that no float32 denormal ever occurs, and a thread that flushes
 * those gets the same bits). Comparisons are signed: SSE2 has no others. */
INLINE VF32 ISA(widen_small)(VU32 bits, int nbits, int nmant, int bias, int special) {
    VI32 rest = (VI32)(bits & ((1u << (nbits - 1)) - 1)) << (23 - nmant);
    VI32 smallest = ((128 - bias) << 23) - (VI32){0};
    VI32 normal = rest + ((127 - bias) << 23);
    VF32 denormal = (VF32)(rest + smallest) - (VF32)smallest;
    VU64 u = ISA(pick)((VU64)(rest < special), (VU64)normal, (VU64)(rest | 0x7f800000));
    u = ISA(pick)((VU64)(rest < 0x00800000), (VU64)denormal, u);
    return (VF32)((VU32)u | (bits & (1u << (nbits - 1))) << (32 - nbits));
}

/* Numbers from `limit` on become `infinity`, which has the bits of a NaN where the type has no infinity. */
INLINE VU32 ISA(narrow_small)(VF32 v, int nbits, int nmant, int bias, int limit, int infinity) {
    VU32 sign = (VU32)v >> (32 - nbits) & (1u << (nbits - 1));
    VI32 u = (VI32)v & 0x7fffffff;
    /* Denormals have one unit in the last place. Next to `alike` it is the same in float32: the sum rounds as we must,
     * and its lowest bits are the result. */
    VI32 alike = ((127 + 24 - bias - nmant) << 23) - (VI32){0};
    VI32 small = (VI32)((VF32)u + (VF32)alike) - alike;
    /* Half a unit less one, plus one where the last kept bit is odd: ties go to even. A carry runs into the exponent
     * and up to infinity as it should. */
    VI32 odd = u >> (23 - nmant) & 1;
    VI32 normal = (u - ((127 - bias) << 23) + ((1 << (22 - nmant)) - 1) + odd) >> (23 - nmant);
    VI32 special = infinity | ((u > 0x7f800000) & (1 << (nmant - 1)));
    VU64 h = ISA(pick)((VU64)(u < (128 - bias) << 23), (VU64)small, (VU64)normal);
    return sign | (VU32)ISA(pick)((VU64)(u < limit), h, (VU64)special);
}

/* 8-bit floats: four to a lane, the even ones in the first pair. What would be rounded to more than the largest number
 * is, like a NaN, the one NaN where the type has no infinity: `LARGEST` is the largest magnitude that is none. */
#define SHMRING_FLOAT8(FORM, NMANT, BIAS, SPECIAL, LARGEST, LIMIT, INFINITE)                                           \
    INLINE QUAD ISA(widen_##FORM)(VU8 raw) {                                                                           \
        VU32 w = (VU32)raw;                                                                                            \
        return (QUAD){{ISA(widen_small)(w & 0xff, 8, NMANT, BIAS, SPECIAL),                                            \
                       ISA(widen_small)(w >> 16 & 0xff, 8, NMANT, BIAS, SPECIAL)},                                     \
                      {ISA(widen_small)(w >> 8 & 0xff, 8, NMANT, BIAS, SPECIAL),                                       \
                       ISA(widen_small)(w >> 24, 8, NMANT, BIAS, SPECIAL)}};                                           \
    }                                                                                                                  \
    INLINE VU32 ISA(round_##FORM)(VF32 v) {                                                                            \
        VU32 nan = 0x7fc00000u - (VU32){0};                                                                            \
        VU64 is_kept = (VU64)((VF32)((VU32)v & 0x7fffffffu) <= (LARGEST));                                             \
        VF32 kept = (VF32)ISA(pick)(is_kept, (VU64)v, (VU64)nan);                                                      \
        return ISA(narrow_small)(kept, 8, NMANT, BIAS, LIMIT, INFINITE);                                               \
    }                                                                                                                  \
    INLINE VU8 ISA(narrow_##FORM)(QUAD v) {                                                                            \
        return (VU8)(ISA(round_##FORM)(v.one.one) | ISA(round_##FORM)(v.two.one) << 8 |                                \
                     ISA(round_##FORM)(v.one.two) << 16 | ISA(round_##FORM)(v.two.two) << 24);                         \
    }                                                                                                                  \
    INLINE QUAD ISA(load_wide_##FORM)(const char *p) {                                                                 \
        PAIR a = ISA(unzip)(ISA(load_pair)(p)), b = ISA(unzip)(ISA(load_pair)(p + 2 * VB));                            \
        return (QUAD){ISA(unzip)((PAIR){a.one, b.one}), ISA(unzip)((PAIR){a.two, b.two})};                             \
    }                                                                                                                  \
    INLINE void ISA(store_wide_##FORM)(char *p, QUAD v) {                                                              \
        PAIR even = ISA(zip)(v.one), odd = ISA(zip)(v.two);                                                            \
        ISA(store_pair)(p, ISA(zip)((PAIR){even.one, odd.one}));                                                       \
        ISA(store_pair)(p + 2 * VB, ISA(zip)((PAIR){even.two, odd.two}));                                              \
    }

SHMRING_FLOAT8(e4m3fn, 3, 7, 0x07f00000, 464.0f, 0x43f00000, 0x7f)
SHMRING_FLOAT8(e5m2, 2, 15, 0x0f800000, __builtin_inff(), 0x47800000, 0x7c)
#undef SHMRING_FLOAT8

/* bfloat16 is the upper half of a float32: even elements need a shift, odd ones a mask, nothing needs a shuffle. */
INLINE PAIR ISA(widen_bf16)(VU8 raw) {
    VU32 w = (VU32)raw;
    return (PAIR){(VF32)(w << 16), (VF32)(w & 0xffff0000u)};
}

INLINE VU32 ISA(round_bf16)(VF32 v) { /* the result is in the upper half; a carry out of the mantissa is right */
    VU32 u = (VU32)ISA(canonical_f32)(v);
    return u + 0x7fff + (u >> 16 & 1);
}

INLINE VU8 ISA(narrow_bf16)(PAIR v) {
    return (VU8)(ISA(round_bf16)(v.one) >> 16 | (ISA(round_bf16)(v.two) & 0xffff0000u));
}

INLINE PAIR ISA(load_wide_bf16)(const char *p) { return ISA(unzip)(ISA(load_pair)(p)); }
INLINE void ISA(store_wide_bf16)(char *p, PAIR v) { ISA(store_pair)(p, ISA(zip)(v)); }

#if VB == 64

INLINE PAIR ISA(widen_f16)(VU8 raw) {
    return (PAIR){(VF32)_mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)raw)),
                  (VF32)_mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)raw, 1))};
}

INLINE VU8 ISA(narrow_f16)(PAIR v) {
    __m256i one = _mm512_cvtps_ph((__m512)ISA(canonical_f32)(v.one), _MM_FROUND_TO_NEAREST_INT);
    __m256i two = _mm512_cvtps_ph((__m512)ISA(canonical_f32)(v.two), _MM_FROUND_TO_NEAREST_INT);
    return (VU8)_mm512_inserti64x4(_mm512_castsi256_si512(one), two, 1);
}

#elif VB == 32

INLINE PAIR ISA(widen_f16)(VU8 raw) {
    return (PAIR){(VF32)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)raw)),
                  (VF32)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)raw, 1))};
}

INLINE VU8 ISA(narrow_f16)(PAIR v) {
    __m128i one = _mm256_cvtps_ph((__m256)ISA(canonical_f32)(v.one), _MM_FROUND_TO_NEAREST_INT);
    __m128i two = _mm256_cvtps_ph((__m256)ISA(canonical_f32)(v.two), _MM_FROUND_TO_NEAREST_INT);
    return (VU8)_mm256_inserti128_si256(_mm256_castsi128_si256(one), two, 1);
}

#elif defined(__aarch64__)

INLINE PAIR ISA(widen_f16)(VU8 raw) {
    float16x8_t h = vreinterpretq_f16_u8((uint8x16_t)raw);
    return (PAIR){(VF32)vcvt_f32_f16(vget_low_f16(h)), (VF32)vcvt_high_f32_f16(h)};
}

INLINE VU8 ISA(narrow_f16)(PAIR v) {
    float16x4_t one = vcvt_f16_f32((float32x4_t)ISA(canonical_f32)(v.one));
    return (VU8)vreinterpretq_u8_f16(vcvt_high_f16_f32(one, (float32x4_t)ISA(canonical_f32)(v.two)));
}

#else /* no conversion instructions */

INLINE VF32 ISA(widen_half)(VU32 h) { return ISA(widen_small)(h, 16, 10, 15, 0x0f800000); }
INLINE VU32 ISA(narrow_half)(VF32 v) { return ISA(narrow_small)(v, 16, 10, 15, 0x47800000, 0x7c00); }

INLINE PAIR ISA(widen_f16)(VU8 raw) {
    VU32 w = (VU32)raw;
    return (PAIR){ISA(widen_half)(w & 0xffff), ISA(widen_half)(w >> 16)};
}

INLINE VU8 ISA(narrow_f16)(PAIR v) {
    return (VU8)(ISA(narrow_half)(ISA(canonical_f32)(v.one)) | ISA(narrow_half)(ISA(canonical_f32)(v.two)) << 16);
}

#endif

/* Instructions take a vector's halves, in order; integers its even and its odd elements. */
#if VB > 16 || defined(__aarch64__)
INLINE PAIR ISA(load_wide_f16)(const char *p) { return ISA(load_pair)(p); }
INLINE void ISA(store_wide_f16)(char *p, PAIR v) { ISA(store_pair)(p, v); }
#else
INLINE PAIR ISA(load_wide_f16)(const char *p) { return ISA(load_wide_bf16)(p); }
INLINE void ISA(store_wide_f16)(char *p, PAIR v) { ISA(store_wide_bf16)(p, v); }
#endif
