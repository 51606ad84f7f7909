"""Failures that follow from another process's failure: the process that failed of itself is to end first.

All ranks learn of a failure at once. A rank that it only reached may end before the one that failed, and launchers
report the first end that they see. So it waits for that end, and exits with a status that `shmring.launch` knows.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from shmring.core.base.lifecycle import at_exit
from shmring.errors import PeerLostError

STATUS = os.EX_UNAVAILABLE
"""The exit status of a process that an error ends which follows from another one's failure."""

_RAISE_S = 0.1  # for the end of the other process, before the error is raised; in all, if that process does not end
_EXIT_S = 2.0  # the same before this process exits
_LOOK_S = 0.25  # in which launchers look at their processes: torchrun each 0.1 s

_texts: deque[str] = deque(maxlen=32)  # of such errors; an error that passes through C++ keeps nothing else
_culprit_pid = 0
_raise_s = _RAISE_S
_print: Callable[..., Any] | None = None  # the hook that was set before this module's
_is_ending = False


def follow(error: Exception, pid: int) -> None:
    """Wait a moment for the end of process ``pid``, whose failure is the reason of this error, which is raised next.

    ``pid`` is 0 if it is not known, or of another machine.
    """
    global _culprit_pid, _raise_s, _print
    _culprit_pid = pid
    _texts.append(str(error))
    if _print is None:
        _print, sys.excepthook = sys.excepthook, _exit_as_follower
    began = time.monotonic()
    has_ended = _await_end(pid, _raise_s)
    # One that lives on may have aborted a communicator for any reason.
    _raise_s = _RAISE_S if has_ended else max(0.0, _raise_s - (time.monotonic() - began))


def is_followed(error: BaseException) -> bool:
    """Whether an exception is, comes from, or has the text of an error that follows from another process's failure."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, PeerLostError) or any(text in _text_of(link) for text in _texts):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # raised by its __str__
        return ""


def _await_end(pid: int, seconds: float) -> bool:
    """Whether a process has ended, a zombie included, before the time is over; True if it cannot be waited for."""
    if pid in (0, os.getpid()):
        return True
    try:
        end = os.pidfd_open(pid)
    except (AttributeError, OSError):  # it is reaped, or this kernel has no such call
        return True
    try:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        return bool(poll.poll(seconds * 1e3))
    finally:
        os.close(end)


def _exit_as_follower(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Print an uncaught exception as before; if it follows from another failure, end with `STATUS`.

    Only where the interpreter has called this because it ends: no Python code is under way then.
    """
    global _is_ending
    assert _print is not None
    _print(kind, error, traceback)
    if is_followed(error) and sys._getframe().f_back is None and not hasattr(sys, "ps1"):
        _is_ending = True
        raise SystemExit(STATUS)


@at_exit
def _end_after_the_culprit() -> None:
    """Be no launcher's first end."""
    if _is_ending:
        _await_end(_culprit_pid, _EXIT_S)
        time.sleep(_LOOK_S)
