# Waiting at several rings at once, for whichever is first (ring/wait_any.pyx).
from libc.stdint cimport uint64_t

from shmring._c.layout cimport sem_t
from shmring.ring.blocking cimport watch_t
from shmring.sync.wait cimport patience_t

# One of them: the other end's counter, and where it must come to.
ctypedef struct awaited_t:
    watch_t *watch
    const uint64_t *counter
    uint64_t until

# Without the GIL. READY when one has come there, or never will (its other end is gone: the caller finds out which);
# LATE; or UNREADY after a tick or a signal, to be called again with the same patience. All others must post `wake`.
cdef int await_any(awaited_t *rings, int n, sem_t *wake, patience_t *patience) noexcept nogil
cdef bint any_has_come(awaited_t *rings, int n) noexcept nogil
