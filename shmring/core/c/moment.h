/* The moment at which a wait of so many nanoseconds ends, by a clock that cannot be set where glibc waits by one. */
#ifndef SHMRING_MOMENT_H
#define SHMRING_MOMENT_H

#include <features.h>
#include <stdint.h>
#include <time.h>

#ifdef __GLIBC_PREREQ /* absent from musl, so it cannot be called in the same condition */
#if __GLIBC_PREREQ(2, 30) && !defined(__SANITIZE_THREAD__)
#define WAITING_CLOCK CLOCK_MONOTONIC
#endif
#endif
#ifndef WAITING_CLOCK
#define WAITING_CLOCK CLOCK_REALTIME /* a clock set back prolongs one tick, no more */
#define sem_clockwait(sem, clock, until) sem_timedwait(sem, until)
#define pthread_mutex_clocklock(lock, clock, until) pthread_mutex_timedlock(lock, until)
#endif

static inline struct timespec moment_in(int64_t ns) {
    struct timespec moment;
    clock_gettime(WAITING_CLOCK, &moment);
    moment.tv_sec += ns / 1000000000;
    moment.tv_nsec += ns % 1000000000;
    if (moment.tv_nsec >= 1000000000) {
        moment.tv_sec += 1;
        moment.tv_nsec -= 1000000000;
    }
    return moment;
}

#endif
