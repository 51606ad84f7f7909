"""The state of a process, from /proc."""

from __future__ import annotations

import os
import pwd
import time
from contextlib import suppress
from typing import NamedTuple

from shmring.core.base.sysfs import stat_fields


class Process(NamedTuple):
    """A process as it was found.

    Attributes
    ----------
    pid : int
        In the PID namespace of this process.
    inner_pid : int
        In its own.
    command : str
        Its arguments, shortened.
    state : str
        ``R`` runs, ``S`` sleeps, ``D`` waits for a device, ``T`` is stopped by a signal, ``t`` by a debugger, ``Z`` has
        ended, as in ps.
    processor : int
        The one that it used last.
    start_time : int
        Clock ticks from boot to its start.
    cpu_ns : int
        Processor time that it has used.
    """

    pid: int
    inner_pid: int
    command: str
    state: str
    processor: int
    start_time: int
    cpu_ns: int

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in ("T", "t")


_COMMAND_LENGTH = 60
_PROC = "/proc"


def process(pid: int) -> Process | None:
    """Look at one process; None if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        fields = stat_fields(pid, _PROC)
        ticks = os.sysconf("SC_CLK_TCK")
        return Process(
            pid,
            _inner_pid(pid),
            _command(pid),
            fields[0],
            int(fields[36]),
            int(fields[19]),
            (int(fields[11]) + int(fields[12])) * 1_000_000_000 // ticks,
        )
    return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _inner_pid(pid: int) -> int:
    for line in _read(f"{_PROC}/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def _command(pid: int) -> str:
    text = _printable(" ".join(_words(pid)).strip())
    return text if len(text) <= _COMMAND_LENGTH else text[: _COMMAND_LENGTH - 3] + "..."


def program_of(pid: int) -> str:
    """The name of the program that a process runs: of its script or module, if it is an interpreter of Python.

    A process that multiprocessing has started runs the program of its parent.
    """
    with suppress(OSError, ValueError, IndexError):
        words = _words(pid)
        for _ in range(4):  # a fork server is between them
            if not any("from multiprocessing" in word for word in words):
                break
            pid = int(stat_fields(pid, _PROC)[1])
            words = _words(pid)
        return _printable(_program(words))
    return ""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _words(pid: int) -> list[str]:
    return _read(f"{_PROC}/{pid}/cmdline").decode("utf-8", "replace").rstrip("\0").split("\0")


def _program(words: list[str]) -> str:
    if not os.path.basename(words[0]).startswith("python"):
        return os.path.basename(words[0])
    for i, word in enumerate(words[1:], 1):
        if word == "-m":
            if words[i + 1] == "shmring.jax":  # the launcher of JAX programs, with a script or -m MODULE
                return _program([words[0], *words[i + 2 :]])
            return words[i + 1]
        if word == "-c":
            return "python -c"
        if not word.startswith("-"):
            return os.path.basename(word)
    return "python"


def user_of(pid: int) -> str:
    """The name of the user that runs a process, or its number."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    except OSError:
        return ""


def started_at(start_time: int) -> float:
    """Seconds since the epoch at the start of a process, from `Process.start_time`."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + start_time / os.sysconf("SC_CLK_TCK")
