/* A lock between processes that survives its holder: when the holder dies, the kernel passes the lock to the next
 * process with the result EOWNERDEAD. */
#ifndef SHMRING_ROBUST_H
#define SHMRING_ROBUST_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "moment.h"

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

static inline void lock_release(pthread_mutex_t *lock) { pthread_mutex_unlock(lock); }

#endif
