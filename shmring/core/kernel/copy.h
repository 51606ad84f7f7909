/* Stores to lines that another core holds.
 *
 * An ordinary store to such a line waits until the core owns it. Three remedies, each of which is faster on some machines
 * and slower on others (docs/maintainers/kernels.md):
 *
 * A streaming (non-temporal) store fills a whole line without reading it first and leaves it in no cache. That is
 * faster where the reader's core is far, or the destination larger than the last-level cache.
 *
 * A line that is asked for some lines ahead of its stores is owned when they come: more lines change owner at a time
 * than stores can wait for. More lines are loaded at a time, too, if two pages are copied in turn, as the hardware
 * prefetchers follow each page for itself.
 *
 * A string instruction knows that it fills whole lines, so the core need not fetch them, and may leave them in its cache.
 */
#ifndef SHMRING_COPY_H
#define SHMRING_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

/* Two places of at most a page are copied in turn; how far ahead of its stores a line of each is asked for. */
enum { SHMRING_TURN_NBYTES = 4096, SHMRING_AHEAD_NBYTES = 8 * 64 };

/* Whether the processor can ask for lines to store to. */
static inline int can_ask_for_lines(void) {
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx) && (ecx >> 8 & 1);
#else
    return 1;
#endif
}

/* Ask for the line at p, to store to it soon. */
static inline void ask_for_line(void *p) {
#if defined(__x86_64__)
    /* The built-in makes it a prefetch for loads unless the target region names the instruction. */
    __asm__ volatile("prefetchw %0" : : "m"(*(char *)p));
#else
    __builtin_prefetch(p, 1, 3);
#endif
}

/* Prefetch the first lines of the destination; the copy loop prefetches the rest. */
static inline void ask_for_first_lines(void *p, size_t nbytes) {
    size_t end = nbytes < 2 * SHMRING_AHEAD_NBYTES ? nbytes : 2 * SHMRING_AHEAD_NBYTES;
    for (size_t at = 0; at < end; at += 64) ask_for_line((char *)p + at);
}

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

/* Whether the processor has fast string instructions. */
static inline int has_fast_strings(void) {
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx >> 9 & 1);
#else
    return 0;
#endif
}

/* Copy by a string instruction. A later store, as the one that announces the data, becomes visible after all of its. */
static inline void copy_string(void *dst, const void *src, size_t nbytes) {
#if defined(__x86_64__)
    size_t head = -(uintptr_t)dst & 63; /* whole lines are filled quickest by one that begins with a line */
    if (head > nbytes) head = nbytes;
    memcpy(dst, src, head);
    dst = (char *)dst + head, src = (const char *)src + head, nbytes -= head;
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(nbytes) : : "memory");
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
