/* Copies past the cache.
 *
 * A streaming (non-temporal) store fills a whole line without reading it first and leaves it in no cache. That pays
 * where the reader's core is far, or the destination larger than the last-level cache (docs/kernels.md).
 */
#ifndef SHMRING_COPY_H
#define SHMRING_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* Copy with streaming stores; the store that announces the data must follow stream_fence. Only whole lines stream:
 * what is left at either end goes the ordinary way. Where the compiler offers no such stores it is a memcpy. */
static inline void copy_streaming(void *dst, const void *src, size_t nbytes) {
#if defined(__x86_64__)
    char *to = (char *)dst;
    const char *from = (const char *)src;
    size_t head = -(uintptr_t)to & 63;
    if (nbytes < head + 64) {
        memcpy(to, from, nbytes);
        return;
    }
    memcpy(to, from, head);
    to += head, from += head, nbytes -= head;
    /* Four stores of 16 bytes, one after the other, fill a write-combining buffer and leave it as one line; every
     * x86-64 has them. */
    for (; nbytes >= 64; to += 64, from += 64, nbytes -= 64) {
        const __m128i_u *line = (const __m128i_u *)from;
        __m128i a = line[0], b = line[1], c = line[2], d = line[3];
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
    }
    memcpy(to, from, nbytes);
#else
    memcpy(dst, src, nbytes);
#endif
}

/* Streaming stores obey no release store: they must be pushed out before one announces them. */
static inline void stream_fence(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#endif
