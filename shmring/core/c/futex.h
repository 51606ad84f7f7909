/* Sleeping on several words at once: `futex_waitv`, Linux 5.16.
 *
 * The kernel compares each word with the value that the thread has stored there, and puts the thread to sleep only if
 * all are equal. So a waker that changes a word first and calls `wake_word` second is never missed: where the change
 * precedes the comparison, the thread does not sleep, and where it follows, the call finds the thread.
 *
 * A futex has 32 bits: it is the low half of the 64-bit word, which on a little-endian machine has the word's address.
 */
#ifndef SHMRING_FUTEX_H
#define SHMRING_FUTEX_H

#include <errno.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "moment.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of a word has the word's address");

/* Older headers have none of these. The number of the call is the same on all architectures but alpha. */
#define FUTEX_WAITV_NUMBER 449
#define FUTEX_WAITV_WORDS 128       /* the most of one call */
#define FUTEX_OF_32_BITS 2          /* and not private: the words lie in shared memory */
typedef struct {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t unused;
} shmring_futex;

/* Whether this process may call it now: an older kernel, an emulator or a seccomp filter refuses it by another error. */
static inline bool has_futex_waitv(void) {
    return syscall(FUTEX_WAITV_NUMBER, NULL, 0, 0, NULL, CLOCK_MONOTONIC) < 0 && errno == EINVAL;
}

static inline shmring_futex futex_of(const uint64_t *word, uint64_t value) {
    return (shmring_futex){(uint32_t)value, (uintptr_t)word, FUTEX_OF_32_BITS, 0};
}

/* Returns when `wake_word` is called for one of the words, when one is unequal to its value, after `ns` nanoseconds (< 0:
 * no limit), when a signal was caught, or for no reason; also when a word is not mapped any more. */
static inline void sleep_on_futexes(const shmring_futex *futexes, unsigned n, int64_t ns) {
    struct timespec until = moment_in(ns < 0 ? 0 : ns);
    syscall(FUTEX_WAITV_NUMBER, futexes, n, 0, ns < 0 ? NULL : &until, WAITING_CLOCK);
}

/* The same for one word, on every kernel. */
static inline void sleep_on_futex(const shmring_futex *futex, int64_t ns) {
    struct timespec limit = {ns / 1000000000, ns % 1000000000};
    syscall(SYS_futex, futex->address, FUTEX_WAIT, (uint32_t)futex->value, ns < 0 ? NULL : &limit, NULL, 0);
}

/* Wake the threads that sleep on a word: all, as one of them may have left it without having woken up. */
static inline void wake_word(const uint64_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

#endif
