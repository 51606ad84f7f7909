"""Start, signal and reap child processes, with time limits. Knows nothing about ranks."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import threading
from collections.abc import Iterable, Iterator

from shmring.core.base.sysfs import stat_fields
from shmring.core.base.timeouts import timeout_ns

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37

_libc = ctypes.CDLL(None)
_prctl = getattr(_libc, "prctl", None)


# The longest single wait for the kernel, which does not take every float: what is longer is waited for in turns.
LONGEST_WAIT_S = 3600.0


def seconds(value: float | None, name: str) -> float:
    """A limit of time by the rule for all timeouts (`shmring.core.base.timeouts.timeout_ns`); infinity for no limit."""
    try:
        nanoseconds = timeout_ns(value)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("timeout", name, 1)) from None
    return math.inf if nanoseconds < 0 else nanoseconds / 1e9


def die_with_parent(parent_pid: int | None = None) -> None:
    """Make the kernel kill this process when the thread that started it ends, for any reason.

    To be called by a fresh child. ``parent_pid`` covers the time before the call: if that process is no longer the
    parent, it is dead already. Does nothing where the kernel has no such call.
    """
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


class _SignalInfo(ctypes.Structure):
    """``siginfo_t``."""

    _fields_ = [(name, ctypes.c_int) for name in ("number", "errno", "code")] + [("rest", ctypes.c_char * 116)]


def take_signal(numbers: Iterable[int], seconds: float) -> tuple[int, int] | None:
    """Wait for one of these signals, which are blocked; its number and ``si_code``.

    None once the time is over, and also earlier, as when this process was stopped and goes on. Python's `sigtimedwait`
    then returns what lies in memory, if the time is over, too.
    """
    expected = (ctypes.c_ulong * 16)()  # at least the size of sigset_t
    _libc.sigemptyset(expected)
    for number in numbers:
        _libc.sigaddset(expected, int(number))
    whole = int(seconds)
    info, limit = _SignalInfo(), (ctypes.c_long * 2)(whole, int((seconds - whole) * 1e9))
    number = _libc.sigtimedwait(expected, ctypes.byref(info), limit)
    return (number, info.code) if number > 0 else None


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Become the parent of the processes that this process's children leave running when they end."""
    if _prctl is None:
        yield
        return
    before = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def children() -> set[int]:
    """Process ids of this process's children, zombies included."""
    own = os.getpid()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _parent(int(entry)) == own:
            found.add(int(entry))
    return found


def adopted() -> set[int]:
    """The children that the calling thread has started or, if it is the main one, has adopted.

    So children of other threads of an embedding program are not among them. Where the kernel does not list the
    children of a thread: all children of this process.
    """
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children") as listed:
            return set(map(int, listed.read().split()))
    except OSError:
        return children()


def describe_status(status: int) -> str:
    """A return code in words: ``exited with status 3``, ``was killed by signal 9 (SIGKILL)``."""
    return f"exited with status {status}" if status >= 0 else f"was killed by {describe_signal(-status)}"


def describe_signal(number: int) -> str:
    """``signal 9 (SIGKILL)``; without the name where the system has none."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _parent(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else 0
