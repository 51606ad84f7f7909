"""Waiting for locks between processes."""

import os

from shmring.base.signals cimport check_signals
from shmring.sync.backoff cimport deadline_of, left_until, now_ns
from shmring.sync.long_waits cimport is_note_due, notes_t, write_note


cdef int require_lock(int error) except -1:
    if error:
        raise OSError(error, "this system has no robust mutexes, which survive the death of their holder")
    return 0


cdef bint await_lock(pthread_mutex_t *lock, int outcome, int64_t timeout_ns, memory) except -1:
    """See `take_lock`, of which ``outcome`` is the first one."""
    cdef int64_t deadline_ns = deadline_of(timeout_ns), began_ns = now_ns(), left
    cdef notes_t notes = notes_t(0, 0)
    while outcome == LOCK_LATE:
        left = left_until(deadline_ns, timeout_ns)
        if left == 0:
            return False
        left = TICK_NS if left < 0 else min(<int64_t>TICK_NS, left)
        with nogil:
            outcome = lock_within(lock, left)
        if outcome == LOCK_LATE:
            check_signals()
            if is_note_due(&notes, began_ns):
                write_note(f"{memory.title} is in use by another process or thread, which waits in the same call",
                           began_ns)
    if outcome < 0:
        raise OSError(-outcome, f"cannot lock {memory.title}: {os.strerror(-outcome)}")
    return True
