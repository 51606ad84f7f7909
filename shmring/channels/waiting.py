"""Waiting at several ends that have nothing to do with each other, and the descriptor of a queue."""

from __future__ import annotations

import os
import selectors
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

from shmring.base.timeouts import deadline_after
from shmring.channels.fan_in import FanInReceiver
from shmring.channels.queue import Queue
from shmring.channels.receiver import Receiver
from shmring.channels.record_receiver import RecordReceiver
from shmring.memory.descriptor import Descriptor

_ENDS = (FanInReceiver, Queue, Receiver, RecordReceiver)
_TICK_S = 0.05


def wait(ends: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Wait until one or more of several ends have something to receive.

    Parameters
    ----------
    ends : iterable
        Receivers of channels, fan-ins and broadcasts, queues; and whatever `multiprocessing.connection.wait` takes:
        connections, sockets, descriptors, sentinels of processes.
    timeout : float, optional
        Seconds to wait; None for ever, 0 not at all.

    Returns
    -------
    list
        Those that are ready, in the order of ``ends``; empty if time ran out. A receiver is ready if `poll` is True, so
        also at the end of its stream. What is in a queue may be taken by another process.

    Raises
    ------
    TypeError
        One of them is none of these; a sender, for example.
    ClosedError
        One of them is closed.

    Notes
    -----
    One end alone is waited for as by its `poll`. For each of several, a thread of this process waits: see `fileno`.
    """
    ends = list(ends)
    deadline = deadline_after(timeout)
    own = [end for end in ends if isinstance(end, _ENDS)]
    if len(ends) == len(own) == 1:
        return [end for end in own if end.poll(timeout)]
    with selectors.PollSelector() as selector:
        for end in ends:
            _register(selector, end)
        while True:
            ready = {id(end) for end in own if end.poll(0)}
            left = 0 if ready else None if deadline is None else max(0.0, deadline - time.monotonic())
            for key, _ in selector.select(left):
                ready.update(id(end) for end in key.data if not isinstance(end, _ENDS) or end.poll(0))
            if ready or left == 0:
                return [end for end in ends if id(end) in ready]


def _register(selector: selectors.BaseSelector, end: Any) -> None:
    if not isinstance(end, (*_ENDS, int)) and (hasattr(end, "try_send") or not hasattr(end, "fileno")):
        raise TypeError(f"cannot wait for {end!r}: it is neither a receiver nor a queue, and has no descriptor to read")
    descriptor = end if isinstance(end, int) else end.fileno()
    if descriptor in selector.get_map():  # the same object twice
        selector.get_key(descriptor).data.append(end)
    else:
        selector.register(descriptor, selectors.EVENT_READ, [end])


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
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
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
