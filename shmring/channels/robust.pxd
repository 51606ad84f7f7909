# Locks between processes that survive their holders (channels/robust.h).

from libc.stdint cimport int64_t, uint32_t

from shmring._c.layout cimport pthread_mutex_t


cdef extern from "channels/robust.h" nogil:
    const int LOCK_HELD
    const int LOCK_INHERITED
    const int LOCK_LATE
    int lock_init(pthread_mutex_t *lock)
    int lock_try(pthread_mutex_t *lock)
    int lock_within(pthread_mutex_t *lock, int64_t ns)
    uint32_t lock_holder(const pthread_mutex_t *copy)
    void lock_release(pthread_mutex_t *lock)

cdef enum:
    TICK_NS = 50000000         # of a waiting thread: between two looks at signals, and at the other side


# Raise the error of `lock_init`, unless it is 0.
cdef int require_lock(int error) except -1
cdef bint await_lock(pthread_mutex_t *lock, int outcome, int64_t timeout_ns, memory) except -1


# Whether a call with this outcome has taken the lock.
cdef inline bint is_locked(int outcome) noexcept nogil:
    return outcome == LOCK_HELD or outcome == LOCK_INHERITED


cdef inline bint take_lock(pthread_mutex_t *lock, int64_t timeout_ns, memory) except -1:
    """Take a lock of ``memory``, also that of a holder that died; False after the timeout."""
    cdef int outcome = lock_try(lock)
    return is_locked(outcome) or await_lock(lock, outcome, timeout_ns, memory)
