"""What the kernel publishes about a process."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple


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


def process(pid: int) -> Process | None:
    """Look at one process; None if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        # The name in parentheses may contain anything; the last parenthesis ends it.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return Process(
            pid,
            _inner_pid(pid),
            _command(pid),
            fields[0].decode(),
            int(fields[36]),
            int(fields[19]),
            (int(fields[11]) + int(fields[12])) * 1_000_000_000 // ticks,
        )
    return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _inner_pid(pid: int) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def _command(pid: int) -> str:
    text = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _COMMAND_LENGTH else text[: _COMMAND_LENGTH - 3] + "..."
