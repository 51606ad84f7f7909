# Liveness of the processes that share a segment, without polling the process table. The method is in
# core/sync/keeper.h.
from libc.stdint cimport uint32_t

from shmring.core.c.layout cimport shmring_liveness

# States of a liveness. DROPPED: not held; its owner dropped it, or it was never held.
cdef enum:
    ALIVE = 0
    DEAD = 1
    DROPPED = 2

# Hold `liveness` (zeroed memory, or a former liveness) until this process dies or drops it; 0 or an errno (EBUSY: a
# living process holds it, or another one takes it now). Any thread may call, and may end afterwards. It must be
# dropped, or ended, before the memory is unmapped: when a process dies, the kernel walks the words that it held, and
# stops at one that it cannot read.
cdef int hold_liveness(shmring_liveness *liveness) noexcept nogil

# Drop it. Does nothing if this process does not hold it (a parent's, or one dropped before).
cdef void drop_liveness(shmring_liveness *liveness) noexcept nogil

# End all that this process holds in a range of memory: observers then see them as dead. Call before unmapping it.
cdef void end_liveness(const void *base, size_t nbytes) noexcept nogil

# ALIVE, DEAD or DROPPED: one load of a word that all observers share. Microseconds where the owner has method 2.
cdef int liveness_state(shmring_liveness *liveness) noexcept nogil

# Whether the kernel marks the death of its holder, if it has one; else an observer asks the process table.
cdef bint is_marked_by_kernel(const shmring_liveness *liveness) noexcept nogil

# Call this after a death was found and before what the dead process could store is stored here. The mark may come
# before the last stores of its other threads: this waits, some 15 ms, until they do not run any more.
cdef void await_last_stores() noexcept nogil

# Differs between a process that has held a liveness and its forked children. An object that one process owns stores it,
# and so detects by one load, where getpid() is a system call, that it is in a forked child.
cdef uint32_t fork_generation() noexcept nogil
