/* Sleeping on a process-shared POSIX semaphore for at most some nanoseconds, by a clock that nobody can set back. */
#ifndef SHMRING_SLEEP_H
#define SHMRING_SLEEP_H

#include <features.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <time.h>

static inline int64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* vdso: no system call */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns when posted, when the time is over, or when a signal was caught: the caller looks for itself what has changed. */
static inline void sleep_on(sem_t *sem, int64_t ns) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30)
    clockid_t clock = CLOCK_MONOTONIC;
#else
    clockid_t clock = CLOCK_REALTIME; /* a clock set back prolongs one tick, no more */
#endif
    struct timespec until;
    clock_gettime(clock, &until);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec += ns % 1000000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec += 1;
        until.tv_nsec -= 1000000000;
    }
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30)
    sem_clockwait(sem, clock, &until);
#else
    sem_timedwait(sem, &until);
#endif
}

#endif
