# Descriptors that become readable when a wait is over, and the one thread of a process that waits for all of them
# (core/sync/notifier.pyx).
from libc.stdint cimport uint32_t

from shmring.core.sync.backoff cimport sleeper_t

# Whether a wait is over: what a thread calls after it has stored its waiter words, and at every tick.
ctypedef bint (*is_over_t)(void *what) noexcept nogil

# One wait that the thread makes. While it is armed it is in the thread's list, and the thread alone uses its sleeper.
ctypedef struct notice_t:
    sleeper_t *sleeper         # its waiter word, on which it sleeps
    is_over_t is_over
    void *what
    int descriptor
    bint is_armed
    uint32_t generation        # of the process that armed it last
    notice_t *next
    notice_t *previous

# Take a wait from the thread, if that has it: afterwards its word is 0, and the descriptor is readable.
cdef void disarm(notice_t *notice) noexcept nogil


cdef class Notifier:
    cdef notice_t notice
    cdef void *memory          # of what it waits for

    cdef bint is_armed(self) noexcept
    cdef int arm(self, sleeper_t *sleeper, is_over_t is_over) except -1
