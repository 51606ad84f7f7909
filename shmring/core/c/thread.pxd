# Threads of this process that run no Python code, and mutexes of its threads (core/c/thread.h).
cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    int pthread_detach(pthread_t thread)

    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)

cdef extern from "core/c/thread.h" nogil:
    const size_t SMALL_STACK_NBYTES
    int start_thread(pthread_t *thread, size_t stack_nbytes, const char *name, void *(*run)(void *) noexcept nogil,
                     void *argument)
