"""Notes of waits that last long: one line on standard error after 30 seconds, and one after ten times as long.

``SHMRING_WAIT_NOTES`` is the number of seconds until the first one; 0: no notes. A wait at the same line of the program
has its notes once in a process, so a worker that is often without work does not fill the log.
"""

from libc.math cimport INFINITY

import os
import warnings

from shmring.core.base.program_line cimport program_line

DEFAULT_S = 30.0
VARIABLE = "SHMRING_WAIT_NOTES"

cdef set written = set()


cdef int64_t setting(text):
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e8:
        warnings.warn(f"{VARIABLE}={text!r}: must be a number of seconds from 0 (no notes) to 1e8; it is taken as "
                      f"{DEFAULT_S}", RuntimeWarning, stacklevel=1)
        seconds = DEFAULT_S
    return <int64_t> (seconds * 1e9) if seconds else INT64_MAX


cdef int write_note(str what, int64_t began_ns) except -1:
    cdef bytes line = program_line(400)
    cdef double seconds = (now_ns() - began_ns) * 1e-9
    cdef bint is_second = seconds * 1e9 >= 10 * first_note_ns
    key = (line, is_second)
    if key in written:
        return 0
    written.add(key)
    pid = os.getpid()
    lasts = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    text = (f"shmring: process {pid} has waited {lasts}: {what}; called at {line.decode('utf-8', 'replace')}. "
            f"`shmring dump {pid}` shows what the ranks of its job do; {VARIABLE}=0 turns this note off\n")
    try:
        os.write(2, text.encode("utf-8", "replace"))
    except OSError:
        pass      # standard error is closed
    return 0


cdef class WaitNotes:
    """The notes of one wait of Python code, which begins when this is made."""
    cdef notes_t notes
    cdef int64_t began_ns

    def __cinit__(self):
        self.began_ns = now_ns()

    def look(self, str what):
        """Write a note about ``what`` if one is due."""
        if is_note_due(&self.notes, self.began_ns):
            write_note(what, self.began_ns)

    def seconds_to_next(self):
        """Seconds until a note is due, for a caller that sleeps so long; infinity: none will be."""
        if self.notes.count == 2 or first_note_ns == INT64_MAX:
            return INFINITY
        due_ns = self.began_ns + first_note_ns * (10 if self.notes.count else 1)
        return max(0, due_ns - now_ns()) * 1e-9


def seconds_to_first():
    """Seconds until the first note of a wait, or None: no notes."""
    return None if first_note_ns == INT64_MAX else first_note_ns * 1e-9


first_note_ns = setting(os.environ.get(VARIABLE, DEFAULT_S))
