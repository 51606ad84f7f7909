# A lock between processes that survives its holders (core/sync/lock.pyx).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.core.c.atomics cimport compare_swap_u64, load_relaxed_u64, store_release_u64
from shmring.core.c.layout cimport shmring_liveness, shmring_lock
from shmring.core.sync.backoff cimport before_wake
from shmring.core.sync.liveness cimport fork_generation

# Results of an attempt; below 0: minus an errno.
cdef enum:
    LOCK_HELD = 0
    LOCK_INHERITED = 1         # its holder died with it
    LOCK_LATE = 2              # another thread, of any process, has it
    LOCK_UNREADY = 3           # of a wait: after a tick

cdef enum:
    TICK_NS = 50000000         # of a waiting thread: between two looks at signals, and at the other side

# One process, as a member of those that take the locks in one memory; only this process uses it. Begin with zeros and
# `table`.
ctypedef struct member_t:
    shmring_liveness *table    # SHMRING_MEMBERS_MAX of them
    uint64_t id                # what `holder` is while it has a lock
    uint32_t joined            # 1 + the generation of the process that has the id; 0: none


cdef bint is_member(uint64_t id) noexcept nogil

# Whether the process with this id, of that turn and number in the table, cannot release a lock any more.
cdef bint is_gone(shmring_liveness *table, uint64_t id) noexcept nogil
cdef int lock_further(shmring_lock *lock, member_t *me) noexcept nogil
cdef int lock_within(shmring_lock *lock, member_t *me, int64_t ns) noexcept nogil
cdef bint await_lock(shmring_lock *lock, member_t *me, int outcome, int64_t timeout_ns, memory) except -1
cdef void wake_next(shmring_lock *lock) noexcept nogil
cdef int holder_pid(const shmring_lock *lock, const shmring_liveness *table) noexcept nogil


# Whether a call with this outcome has taken the lock.
cdef inline bint is_locked(int outcome) noexcept nogil:
    return outcome == LOCK_HELD or outcome == LOCK_INHERITED


cdef inline int lock_try(shmring_lock *lock, member_t *me) noexcept nogil:
    # SYNC locked (meets: lock_release)
    if me.joined == fork_generation() + 1 and compare_swap_u64(&lock.holder, 0, me.id):
        return LOCK_HELD
    return lock_further(lock, me)


cdef inline bint take_lock(shmring_lock *lock, member_t *me, int64_t timeout_ns, memory) except -1:
    """Take a lock of ``memory``, also that of a holder that died; False after the timeout."""
    cdef int outcome = lock_try(lock, me)
    return is_locked(outcome) or await_lock(lock, me, outcome, timeout_ns, memory)


cdef inline void lock_release(shmring_lock *lock) noexcept nogil:
    # SYNC locked (meets: lock_try, lock_further)
    store_release_u64(&lock.holder, 0)
    before_wake()
    if load_relaxed_u64(&lock.waiting):
        wake_next(lock)
