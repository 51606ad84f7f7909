"""Queues: the standard library's, over pipes of rings."""

from __future__ import annotations

import os
import weakref
from errno import EPIPE
from multiprocessing import context, queues, util
from multiprocessing.synchronize import SEM_VALUE_MAX
from queue import Empty, Full
from typing import Any

from shmring.channels.backlog import Backlog
from shmring.channels.half_pipe import create_half
from shmring.errors import ObjectError
from shmring.multiprocessing.connection import Pipe, connected, dumps, loads

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "SimpleQueue"]

CAPACITY_NBYTES = 1 << 20


class Queue(queues.Queue):
    """A queue, as `multiprocessing.Queue`.

    `put` copies the item into the ring. If there is no room, the item waits in a backlog of the process, and a thread
    feeds the ring, as in the standard library; so `put` never blocks without a ``maxsize``.
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        # Not the constructor of the standard library: its semaphores stay with a process that is killed. The counts of
        # items, and the lock of the receiving end, are in the memory of the pipe.
        reader, writer = connected(create_half(CAPACITY_NBYTES, max(maxsize, 0)), None)
        self._set_up(False, maxsize, reader, writer, os.getpid())
        util.register_after_fork(self, Queue._after_fork)

    def _set_up(self, ignore_epipe, maxsize, reader, writer, opid) -> None:
        self._ignore_epipe = ignore_epipe
        self._maxsize = maxsize if maxsize > 0 else SEM_VALUE_MAX
        self._reader, self._writer, self._opid = reader, writer, opid
        self._rlock = ReceivingLock(reader)
        self._reset()

    def __getstate__(self) -> tuple:
        context.assert_spawning(self)
        return self._ignore_epipe, self._maxsize, self._reader, self._writer, self._opid

    def __setstate__(self, state: tuple) -> None:
        self._set_up(*state)

    def _reset(self, after_fork: bool = False) -> None:
        self._backlog = Backlog(self._writer._outgoing)
        self._joincancelled = False
        self._closed = False
        self._poll = self._reader.poll
        self._jointhread = util.Finalize(self._backlog, _join, [weakref.ref(self._backlog)], exitpriority=-5)
        self._close = util.Finalize(self, self._backlog.end, exitpriority=10)

    def put(self, obj: object, block: bool = True, timeout: float | None = None) -> None:
        """Put an item.

        Parameters
        ----------
        obj : object
            Anything that pickles. Large buffers in it must not be changed before another process has got it.
        block : bool, default True
            Whether to wait while the queue has ``maxsize`` items.
        timeout : float, optional
            Seconds to wait; None for ever.

        Raises
        ------
        queue.Full
            The queue had ``maxsize`` items all the time.
        ValueError
            The queue was closed here.

        Notes
        -----
        Errors of pickling are printed, and the item is dropped, as in the standard library.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        try:
            content = dumps(obj)
        except ObjectError as error:
            self._report(error.__cause__ or error, obj)
            return
        try:
            self._backlog.put(content, timeout if block else 0, self._feeding)
        except BrokenPipeError as error:
            self._report(error, obj)

    def _report(self, error: BaseException, obj: object) -> None:
        try:
            raise error from None  # for traceback.print_exc()
        except BaseException:
            self._on_queue_feeder_error(error, obj)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Get the next item, and remove it.

        Parameters
        ----------
        block : bool, default True
            Whether to wait for an item.
        timeout : float, optional
            Seconds to wait; None for ever.

        Returns
        -------
        object
            A copy of the item; its arrays own their memory.

        Raises
        ------
        queue.Empty
            No item came in time.
        ValueError
            The queue was closed here.
        Exception
            An error of unpickling. The item was removed.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        return loads(self._reader.take(timeout if block else 0))

    def qsize(self) -> int:
        """The number of items, those in backlogs of living processes included.

        Returns
        -------
        int
        """
        return self._reader._incoming.qsize()

    def full(self) -> bool:
        """Whether the queue has ``maxsize`` items.

        Returns
        -------
        bool
        """
        return self._reader._incoming.full()

    def _feeding(self) -> tuple:
        """What the thread of the backlog does."""
        return _feed, (self._backlog, self._reader, self._writer, self._ignore_epipe, self._on_queue_feeder_error)


def _join(backlog: weakref.ref) -> None:
    found = backlog()
    if found is not None:
        found.join()


def _feed(backlog, reader, writer, ignore_epipe, on_error) -> None:
    """The thread's function. An item counts until it is sent, so `put` sends no later item before it."""
    try:
        while (content := backlog.next()) is not None:
            try:
                backlog.send(content)
            except Exception as error:
                if ignore_epipe and getattr(error, "errno", 0) == EPIPE:
                    return
                if util.is_exiting():
                    util.info("error in queue thread: %s", error)
                    return
                on_error(error, content)
            content = None  # the thread may now wait for long
        reader.close()
        writer.close()
    finally:
        backlog.leave()


class JoinableQueue(Queue, queues.JoinableQueue):
    """A queue with items that are reported done, as `multiprocessing.JoinableQueue`."""

    def task_done(self) -> None:
        """Report that an item that was got has been processed.

        Raises
        ------
        ValueError
            All items that were ever put have been reported done.
        """
        self._reader._incoming.task_done()

    def join(self) -> None:
        """Wait until all items that were ever put have been reported done."""
        self._reader._incoming.join()


class ReceivingLock:
    """The lock of the receiving end of a pipe, as one of `multiprocessing`; its holder's death gives it to another.

    `get` takes it by itself. A thread that has it receives alone, until it releases it: so the standard library's pool
    takes back the tasks of its workers when it ends.
    """

    def __init__(self, reader: Any) -> None:
        self._half = reader._incoming

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take the lock, as `multiprocessing.Lock.acquire`."""
        return self._half.hold_receiving(block, timeout)

    def release(self) -> None:
        """Release the lock, as `multiprocessing.Lock.release`."""
        self._half.let_go_receiving()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimpleQueue(queues.SimpleQueue):
    """A queue without a buffer in the process, as `multiprocessing.SimpleQueue`: `put` waits while there is no room."""

    def __init__(self, *, ctx: Any) -> None:
        self.__setstate__(Pipe(False, CAPACITY_NBYTES))

    def __getstate__(self) -> tuple:
        context.assert_spawning(self)
        return self._reader, self._writer

    def __setstate__(self, state: tuple) -> None:
        self._reader, self._writer = state
        self._rlock = ReceivingLock(self._reader)
        self._poll = self._reader.poll

    def get(self) -> Any:
        """Wait for the next item. Raises as `RingConnection.recv`.

        Returns
        -------
        object
            A copy of the item; its arrays own their memory.
        """
        return self._reader.recv()

    def put(self, obj: object) -> None:
        """Put an item. Raises as `RingConnection.send`.

        Parameters
        ----------
        obj : object
            Anything that pickles. It may be changed after the call.
        """
        self._writer.send(obj)


def __getattr__(name: str) -> Any:
    return getattr(queues, name)
