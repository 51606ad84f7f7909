"""The file behind a segment gets its size, its pages and its mapping; no room is an `OutOfSharedMemoryError`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from shmring.core.base.control_groups import memory_room
from shmring.core.memory.mapping import Mapping, allocate
from shmring.core.memory.names import SHM_DIRECTORY
from shmring.core.memory.syscalls import call
from shmring.errors import OutOfSharedMemoryError, SegmentError

# The kernel's answers when it has no room for a file's pages: file system, memory or its control group, quota,
# RLIMIT_FSIZE.
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)


def free_nbytes() -> int:
    """Bytes free for shared memory; -1 if unknown (a tmpfs without limit has 0 blocks in all)."""
    try:
        status = call("statvfs", os.statvfs, SHM_DIRECTORY)
    except OSError:
        return -1
    return status.f_bavail * status.f_frsize if status.f_blocks else -1


@contextmanager
def _room(name: str, nbytes: int) -> Iterator[None]:
    """Turn the kernel's answers for "no room" into an `OutOfSharedMemoryError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        free, room = free_nbytes(), memory_room()
        if room is not None and nbytes > room:
            text = (
                f"the memory of its control group, or container, has {room} bytes left. Give it more (docker run "
                "--memory=2g), or use smaller or fewer slots"
            )
            free = room if free < 0 else min(free, room)
        else:
            text = (
                f"{SHM_DIRECTORY} has {free if free >= 0 else 'an unknown number of'} bytes free. Enlarge it (docker "
                "run --shm-size=1g, or mount -o remount,size=1g /dev/shm), use smaller or fewer slots, or remove "
                "leftovers (shmring info)"
            )
        text = f"cannot reserve {nbytes} bytes of shared memory for {name}: {error.strerror}; {text}"
        raise OutOfSharedMemoryError(text, nbytes, free) from error


def extend(name: str, fd: int, nbytes: int) -> None:
    """Set the size of the file; its new pages get no memory."""
    with _room(name, nbytes):
        call("ftruncate", os.ftruncate, fd, nbytes)


def reserve(name: str, fd: int, offset: int, nbytes: int, *, needed: int = 0) -> None:
    """Give a range of the file its memory now: without it, a later access would be a SIGBUS.

    ``needed``, if given, is what the error reports: the bytes of this and of later reservations.
    """
    with _room(name, needed or nbytes):
        call("posix_fallocate", allocate, fd, offset, nbytes)


def map_file(name: str, fd: int, nbytes: int) -> Mapping:
    """Map the first ``nbytes`` bytes of the file."""
    try:
        return call("mmap", Mapping, fd, nbytes)
    except ValueError as error:  # the file was truncated after its size was checked
        raise SegmentError(f"cannot map {name}: {error}") from error
