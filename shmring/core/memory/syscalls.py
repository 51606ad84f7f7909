"""The system calls of this room: each goes through `call`, where a test can make it fail; `refusals` has its error."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shmring.errors import OutOfSharedMemoryError, SegmentError, ShmringError

# Where shm_open keeps its names on Linux, in glibc as in musl. Used to look at names, never to open them.
SHM_DIRECTORY = "/dev/shm"

# Fault injection: if set, called with the name of each system call of this room before it is made.
fault: Callable[[str], None] | None = None


def call(name: str, function: Callable, *args: Any) -> Any:
    """Make the system call ``name``."""
    if fault is not None:
        fault(name)
    return function(*args)


@contextmanager
def refusals(task: str) -> Iterator[None]:
    """Turn an `OSError` that has no more exact class into a `SegmentError`: "cannot ``task``: ..."."""
    try:
        yield
    except ShmringError:
        raise
    except OSError as error:
        raise SegmentError(error.errno or errno.EIO, f"cannot {task}: {error.strerror or error}") from error


def refusal_to_create(name: str, error: OSError) -> Exception:
    """The error for a file that the kernel refuses to create in `SHM_DIRECTORY`, with the remedy if there is one."""
    number = error.errno
    if number in (errno.ENOENT, errno.ENOTDIR):
        return SegmentError(
            number,
            f"this system has no {SHM_DIRECTORY}, where shared memory is: mount a tmpfs there "
            f"(mount -t tmpfs -o size=1g shm {SHM_DIRECTORY})",
        )
    if number in (errno.EACCES, errno.EROFS):
        return SegmentError(number, f"{SHM_DIRECTORY} does not let this user create {name}: {os.strerror(number)}")
    if number == errno.ENOSPC:
        return OutOfSharedMemoryError(f"cannot create {name}: {SHM_DIRECTORY} has no room for a file")
    return error
