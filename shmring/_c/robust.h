/* A lock between processes that survives its holder: the kernel hands it on, and says so, when its holder dies. */
#ifndef SHMRING_ROBUST_H
#define SHMRING_ROBUST_H

#include <errno.h>
#include <features.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

enum { LOCK_HELD = 0, LOCK_INHERITED = 1, LOCK_LATE = 2 };

static inline int lock_init(pthread_mutex_t *lock) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    int error = pthread_mutex_init(lock, &how);
    pthread_mutexattr_destroy(&how);
    return error;
}

/* LOCK_HELD; LOCK_INHERITED, if its holder died with it; LOCK_LATE; or minus an errno. */
static inline int lock_outcome(pthread_mutex_t *lock, int error) {
    if (error == EOWNERDEAD) {
        pthread_mutex_consistent(lock);
        return LOCK_INHERITED;
    }
    return error == 0 ? LOCK_HELD : error == EBUSY || error == ETIMEDOUT ? LOCK_LATE : -error;
}

static inline int lock_try(pthread_mutex_t *lock) { return lock_outcome(lock, pthread_mutex_trylock(lock)); }

static inline int lock_within(pthread_mutex_t *lock, int64_t ns) {
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
    return lock_outcome(lock, pthread_mutex_clocklock(lock, clock, &until));
#else
    return lock_outcome(lock, pthread_mutex_timedlock(lock, &until));
#endif
}

static inline void lock_release(pthread_mutex_t *lock) { pthread_mutex_unlock(lock); }

#endif
