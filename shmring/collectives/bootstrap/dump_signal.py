"""A signal on which a rank writes what all ranks do: the environment variable ``SHMRING_DUMP_SIGNAL``.

The Python stacks of the rank are written at once, from the signal handler in C, also while it computes in a library.
The accounts of its communicators follow as soon as the interpreter runs handlers: in calls of shmring within a tick.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from types import FrameType

from shmring.core.base.lifecycle import Stage, tracked
from shmring.core.base.unraisable import report_unraisable

_VARIABLE = "SHMRING_DUMP_SIGNAL"
_installed: set[int] = set()
# Those that no process can handle, and those of faults, after whose handler the faulting instruction runs again.
_NOT_HANDLED = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
}


def install() -> None:
    """Install the handler, once, if the variable is set. Python allows it in the main thread only; elsewhere the next
    communicator that the main thread makes does it. Raises ``ValueError`` for what is no signal."""
    text = os.environ.get(_VARIABLE, "")
    number = _number(text) if text else None
    if number is None or number in _installed or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(number)

    def dump(signum: int, frame: FrameType | None) -> None:
        try:
            _write()
        except Exception as error:  # the job goes on
            report_unraisable(error, dump)
        if callable(before):
            before(signum, frame)

    signal.signal(number, dump)
    with contextlib.suppress(AttributeError, ValueError, OSError):  # standard error is closed
        assert sys.__stderr__ is not None
        faulthandler.register(number, file=sys.__stderr__, all_threads=True, chain=True)
    _installed.add(number)


def _number(text: str) -> int:
    names = {one.name.removeprefix("SIG"): int(one) for one in signal.Signals}
    number = int(text) if text.isdecimal() else names.get(text.upper().removeprefix("SIG"), 0)
    if number not in names.values() or number in _NOT_HANDLED:
        raise ValueError(f"{_VARIABLE}={text!r}: must be a signal that a process can handle, for example USR1")
    return number


def _write() -> None:
    """Write the accounts of all communicators of this process in one piece."""
    parts = [
        f"shmring: rank {engine.rank} (pid {os.getpid()}) of {engine.name}, on {os.environ[_VARIABLE]}:\n{account}\n"
        for engine in tracked(Stage.ENGINE)
        if (account := engine.account())
    ]
    with contextlib.suppress(OSError, ValueError):
        os.write(2, "".join(parts).encode("utf-8", "replace"))
