# Notes of waits that last long (core/sync/long_waits.pyx).
from libc.stdint cimport INT64_MAX, int64_t

from shmring.core.sync.backoff cimport now_ns

# The notes of one wait, or of one after the other. Begin with zeros.
ctypedef struct notes_t:
    int64_t began_ns               # of the wait
    int count                      # notes of it so far

cdef int64_t first_note_ns         # INT64_MAX: no notes


cdef inline bint is_note_due(notes_t *notes, int64_t began_ns) noexcept nogil:
    """Whether a wait that began then has lasted long enough for its next note, which is counted."""
    if notes.began_ns != began_ns:
        notes.began_ns = began_ns
        notes.count = 0
    if notes.count == 2 or first_note_ns == INT64_MAX:
        return False
    if now_ns() - began_ns < first_note_ns * (10 if notes.count else 1):
        return False
    notes.count += 1
    return True


# Write one: ``what`` waits, for what. With the GIL; does not call back into Python code of the program.
cdef int write_note(str what, int64_t began_ns) except -1
