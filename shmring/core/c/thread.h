/* Starting a thread of this process that runs no Python code. */
#ifndef SHMRING_THREAD_H
#define SHMRING_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* Small, but with room for the static TLS of big libraries, which glibc takes out of the stack. */
#define SMALL_STACK_NBYTES (128 * 1024)

/* 0 or an errno. All signals are blocked in the thread, so no handler ever runs there. The kernel has its name before
 * this returns: "shmring-" and what it does (core/ring/prospects.pyx looks for it). */
static inline int start_thread(pthread_t *thread, size_t stack_nbytes, const char *name, void *(*run)(void *),
                               void *argument) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error) return error;
    size_t default_nbytes = 0;
    pthread_attr_getstacksize(&attributes, &default_nbytes);
    pthread_attr_setstacksize(&attributes, stack_nbytes);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited */
    error = pthread_create(thread, &attributes, run, argument);
    if (error == EINVAL) { /* static TLS larger than that */
        pthread_attr_setstacksize(&attributes, default_nbytes);
        error = pthread_create(thread, &attributes, run, argument);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) pthread_setname_np(*thread, name);
    pthread_attr_destroy(&attributes);
    return error;
}

#endif
