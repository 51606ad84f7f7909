# Waiting at several rings at once, until the first of them is ready (ring/wait_any.pyx).
from libc.stdint cimport uint64_t

from shmring._c.layout cimport sem_t
from shmring.ring.blocking cimport watch_t
from shmring.sync.backoff cimport patience_t, sleeper_t

# One of them: the other end's counter, and the number it must reach.
ctypedef struct awaited_t:
    watch_t *watch
    const uint64_t *counter
    uint64_t until
    sleeper_t sleeper              # while await_any runs

# Without the GIL. READY when one of the counters has come, or never will (its other end is gone: the caller finds out
# which); LATE; or UNREADY after a tick or a signal, to be called again with the same patience. The other ends must post
# `wake`.
cdef int await_any(awaited_t *rings, int n, sem_t *wake, patience_t *patience) noexcept nogil
cdef bint any_has_come(awaited_t *rings, int n) noexcept nogil
