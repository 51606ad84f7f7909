/* Sleeping on a process-shared POSIX semaphore for at most some nanoseconds. */
#ifndef SHMRING_SLEEP_H
#define SHMRING_SLEEP_H

#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <time.h>

#include "moment.h"

static inline int64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* vdso: no system call */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns when posted, when the time is over, or when a signal was caught: the caller looks for itself what has changed. */
static inline void sleep_on(sem_t *sem, int64_t ns) {
    struct timespec until = moment_in(ns);
    sem_clockwait(sem, WAITING_CLOCK, &until);
}

#endif
