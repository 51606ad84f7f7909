/* A lock between processes that survives its holder: when the holder dies, the kernel passes the lock to the next
 * process with the result EOWNERDEAD. */
#ifndef SHMRING_ROBUST_H
#define SHMRING_ROBUST_H

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "_c/moment.h"

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
    struct timespec until = moment_in(ns);
    return lock_outcome(lock, pthread_mutex_clocklock(lock, WAITING_CLOCK, &until));
}

/* The number of the thread that has the lock, 0 if none, from a copy of the lock: for observers, which do not take it.
 * That of a dead holder stays until another process takes the lock. */
static inline uint32_t lock_holder(const pthread_mutex_t *copy) {
#ifdef __GLIBC__
    return (uint32_t)copy->__data.__lock & FUTEX_TID_MASK;
#else
    return (uint32_t)((const int *)copy)[1] & FUTEX_TID_MASK; /* musl */
#endif
}

static inline void lock_release(pthread_mutex_t *lock) { pthread_mutex_unlock(lock); }

#endif
