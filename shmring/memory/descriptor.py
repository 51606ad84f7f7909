"""A file descriptor that is closed once, by its owner or with it."""

from __future__ import annotations

import os


class Descriptor:
    """Owner of a file descriptor. Its deallocation closes it, as does the first `close`.

    An exception handler may come between the call that creates an owner and the assignment of it, so more than one
    place has to close; a number that is closed twice may be another file's by then.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close; later calls do nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close
