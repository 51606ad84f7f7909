"""The descriptor of a queue: an eventfd, and the thread that writes it."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from shmring.memory.descriptor import Descriptor

if TYPE_CHECKING:
    from shmring.channels.queue import Queue

_TICK_S = 0.05


class QueueDescriptor:
    """An eventfd that is readable when a queue may have an item; initially, too.

    A consumer waits for items while it owns the receiving end. So a thread of this process does, and gives the end back
    as soon as there is an item.
    """

    def __init__(self, owner: Queue) -> None:
        self._owner = weakref.ref(owner, self._end)
        self._eventfd = Descriptor(os.eventfd, 1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def fd(self) -> int:
        """The descriptor."""
        return self._eventfd.fd

    def arm(self) -> None:
        """The queue was found empty: make it readable once there is an item."""
        if self._wanted.is_set():
            return
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shmring-queue", daemon=True)
            self._thread.start()

    def _end(self, _owner: Any) -> None:
        self._wanted.set()

    def _run(self) -> None:
        while self._wanted.wait() and (owner := self._owner()) is not None:
            try:
                is_there = owner.poll(_TICK_S)
            except ValueError:  # closed: the next call raises it
                is_there = True
            del owner
            if is_there:
                self._wanted.clear()
                os.eventfd_write(self.fd, 1)
