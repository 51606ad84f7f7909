"""The files in shared memory that processes of this user have open, named or not, and copies of what is in them.

A process has a descriptor of what it has open, /proc lists descriptors, and the file can be opened from there: with
the rights of a debugger that only reads (which Yama does not restrict), also when its name is gone. Files are opened
read-only and read by copies. So nothing is mapped here that its owner could truncate, and nothing is kept alive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from shmring.core.memory.names import inode_of
from shmring.core.memory.spelling import user_prefix
from shmring.core.memory.unnamed import is_unnamed


class OpenFile(NamedTuple):
    """A file that one process has open: the process, the link to the file, and what the link reads."""

    pid: int
    path: str
    target: str

    @property
    def name(self) -> str:
        """The name it has or had, with the leading slash."""
        return "/" + os.path.basename(self.target.removesuffix(" (deleted)"))

    def inode(self) -> tuple[int, int]:
        """The identity of the file; OSError once the process is gone."""
        return inode_of(os.stat(self.path))

    def read(self, *ranges: tuple[int, int]) -> list[bytes]:
        """Copies of ranges of it, each an offset and a number of bytes; shorter, or empty, beyond its end.

        OSError if the process is gone, or the file is another user's.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                raise PermissionError(f"{self.target} belongs to another user")
            return [os.pread(fd, nbytes, offset) for offset, nbytes in ranges]
        finally:
            os.close(fd)


def open_files(unreadable: list[int] | None = None, target: str | None = None) -> Iterator[OpenFile]:
    """Each descriptor of a segment of ours, and of a file whose link reads ``target``, of each process of this user;
    ``unreadable`` gets the pids that refuse."""
    prefix = user_prefix()[1:]

    def is_wanted(found: str) -> bool:
        return is_unnamed(found) or os.path.basename(found).startswith(prefix) or found == target

    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            yield from _open_files_of(pid, is_wanted)
        except PermissionError:
            with suppress(OSError):
                if unreadable is not None and os.stat(f"/proc/{pid}").st_uid == os.geteuid():
                    unreadable.append(pid)
        except OSError:  # gone
            continue


def _open_files_of(pid: int, is_wanted: Callable[[str], bool]) -> Iterator[OpenFile]:
    """PermissionError: the process refuses; of one with more capabilities, descriptors are listed, but not read."""
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{descriptor}"
        with suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(path)
            if is_wanted(target):
                yield OpenFile(pid, path, target)
