# Liveness of the processes that share a segment, without polling the process table. The story is in _c/keeper.h.
from libc.stdint cimport uint32_t

from shmring._c.layout cimport shmring_liveness

# What a look at a life returns. DROPPED: not held; its owner let go of it, or it was never held.
cdef enum:
    ALIVE = 0
    DEAD = 1
    DROPPED = 2

# Hold `life` (zeroed memory, or a former life) until this process dies or drops it; 0 or an errno (EBUSY: a process
# living holds it). Any thread may call, and may end afterwards. It must be dropped, or ended, before the memory is
# unmapped: the kernel walks the lives a process held when it dies, and stops at one it cannot read.
cdef int hold_liveness(shmring_liveness *life) noexcept nogil

# Let go. Of what this process does not hold (a parent's, one dropped before) it does nothing.
cdef void drop_liveness(shmring_liveness *life) noexcept nogil

# Let go of all that this process holds in a range of memory, which then look dead. Call before unmapping it.
cdef void end_liveness(const void *base, size_t nbytes) noexcept nogil

# ALIVE, DEAD or DROPPED: one load of a word that all observers share. Microseconds where the owner has method 2.
cdef int life_state(shmring_liveness *life) noexcept nogil

# Differs between a process that has held a life and its forked children: what is owned by one process remembers it, and
# so knows for the price of a load, where getpid() is a system call, that it was inherited.
cdef uint32_t fork_generation() noexcept nogil
