"""The system calls of this room: each passes `call`, where a test can make it fail, and `refusals` words its error."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shmring.errors import SegmentError, ShmringError

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
