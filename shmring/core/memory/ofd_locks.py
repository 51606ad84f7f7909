"""Open-file-description locks on single bytes of a file. The bytes' contents are neither read nor written.

Like ``flock`` they belong to the open file description: threads exclude each other, and closing another descriptor of
the same file releases nothing (POSIX record locks fail both). Unlike ``flock`` they can be tested without being taken,
and one file can have several. Like ``flock`` they are shared with a forked child, until all copies of the descriptor
are closed or one of them unlocks.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from shmring.core.base.pace import Pace
from shmring.core.memory.syscalls import call

# struct flock of 64-bit Linux: type, whence, start, length, pid (0 for these locks), padding.
_FLOCK = struct.Struct("hhqqi0q")


def _flock(fd: int, command: int, kind: int, byte: int) -> int:
    return _FLOCK.unpack(call("fcntl", fcntl.fcntl, fd, command, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)))[0]


def lock(fd: int, byte: int, *, shared: bool = False, patience_s: float = 0.0) -> bool:
    """Take a lock, or change its kind; False if another open file holds a conflicting one for ``patience_s``."""
    deadline, pace = time.monotonic() + patience_s, Pace()
    while True:
        try:
            _flock(fd, fcntl.F_OFD_SETLK, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, byte)
            return True
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline:
                return False
        pace.pause()


def unlock(fd: int, byte: int) -> None:
    """Release a lock, for all descriptors of this open file."""
    _flock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, byte)


def is_locked(fd: int, byte: int) -> bool:
    """Whether another open file holds the lock, shared or not. Takes nothing."""
    return _flock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, byte) != fcntl.F_UNLCK
