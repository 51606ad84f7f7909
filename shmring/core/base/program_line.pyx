"""The line of the user's program that made a call: frames of shmring, torch and JAX are passed over.

Work that a thread does for another one has the line that submitted it (`on_behalf_of`). A thread without a line of
the program, such as that in which torch computes gradients, works for the main thread and has its line.
"""

import sys
from threading import get_ident, main_thread

cdef frozenset PASSED = frozenset(("shmring", "torch", "jax", "jaxlib", "threading", "contextlib", "concurrent",
                                   "asyncio"))
cdef dict passes = {}      # name of a module -> whether its frames are passed over
cdef dict submitted_at = {}      # thread -> the line that submitted the work that it does


cdef object frame_of_program(frame):
    """The innermost frame of the program, or None."""
    cdef object name, found
    while frame is not None:
        name = frame.f_globals.get("__name__")
        found = passes.get(name)
        if found is None:
            found = isinstance(name, str) and name.partition(".")[0] in PASSED
            if isinstance(name, str):
                passes[name] = found
        if not found:
            return frame
        frame = frame.f_back
    return None


def submitting_line():
    """The place of the caller in the program, to be passed to `on_behalf_of`. Costs less than a microsecond."""
    frame = frame_of_program(sys._getframe())
    return submitted_at.get(get_ident()) if frame is None else (frame.f_code, frame.f_lineno)


def line_of_thread(thread):
    """The place in the program at which another thread is now, to be passed to `on_behalf_of`; None if it has none."""
    frame = frame_of_program(sys._current_frames().get(thread))
    return submitted_at.get(thread) or (None if frame is None else (frame.f_code, frame.f_lineno))


class on_behalf_of:  # noqa: N801
    """A context in which calls of this thread have the line of the program that has submitted them."""

    def __init__(self, line):
        self.line = line

    def __enter__(self):
        self.thread = get_ident()
        self.before = submitted_at.get(self.thread)
        if self.line is not None:
            submitted_at[self.thread] = self.line

    def __exit__(self, *_):
        if self.before is None:
            submitted_at.pop(self.thread, None)
        else:
            submitted_at[self.thread] = self.before


cdef str text_of(code, line):
    return f"{code.co_filename}:{line} in {code.co_name}"


cdef bytes program_line(int most):
    cdef object place = submitted_at.get(get_ident())
    cdef str found
    if place is not None:
        found = text_of(place[0], place[1])
    else:
        try:
            frame = sys._getframe()
        except ValueError:     # a thread that was not started in Python, which called through the C table
            frame = None
        frame = frame_of_program(frame)
        suffix = ""
        if frame is None:
            frame = frame_of_program(sys._current_frames().get(main_thread().ident))
            suffix = ", in the main thread"
        found = "a thread of shmring" if frame is None else text_of(frame.f_code, frame.f_lineno) + suffix
    text = found.encode("utf-8", "replace")
    return text[max(0, len(text) - most):]
