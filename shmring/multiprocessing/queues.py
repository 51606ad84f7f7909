"""Queues: the standard library's, over pipes of rings."""

from __future__ import annotations

import threading
import weakref
from errno import EPIPE
from multiprocessing import queues, util
from queue import Empty, Full
from typing import Any

from shmring.multiprocessing.connection import Pipe, dumps, loads

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "SimpleQueue"]

CAPACITY_NBYTES = 1 << 20
_END = None  # in the buffer: the queue was closed


class Queue(queues.Queue):
    """A queue, as `multiprocessing.Queue`.

    `put` copies the item into the ring. If there is no room, the item waits in a buffer of the process, and a thread
    feeds the ring, as in the standard library; so `put` never blocks without a ``maxsize``.
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        super().__init__(maxsize, ctx=ctx)
        _send_through_rings(self)
        self._reset()

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
        if not self._sem.acquire(block, timeout):
            raise Full
        try:
            try:
                content = dumps(obj)
            except (KeyboardInterrupt, SystemExit):  # of a signal: pickling may take long
                self._sem.release()
                raise
            self._enqueue(content)
        except Exception as error:
            self._sem.release()
            self._on_queue_feeder_error(error, obj)

    def _enqueue(self, content: Any) -> None:
        with self._notempty:
            if not self._buffer and self._writer.offer(content):
                return
            if self._thread is None:
                self._start_thread()
            self._buffer.append(content)
            self._notempty.notify()

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
        content = self._reader.take((None if timeout is None else max(timeout, 0)) if block else 0)
        self._sem.release()
        return loads(content)

    def _start_thread(self) -> None:
        self._thread = threading.Thread(
            target=_feed,
            args=(self._buffer, self._notempty, self._reader, self._writer, self._ignore_epipe,
                  self._on_queue_feeder_error, self._sem),
            name="QueueFeederThread",
            daemon=True,
        )  # fmt: skip
        self._thread.start()
        if not self._joincancelled:
            self._jointhread = util.Finalize(
                self._thread, queues.Queue._finalize_join, [weakref.ref(self._thread)], exitpriority=-5
            )
        self._close = util.Finalize(self, _finish, [self._buffer, self._notempty], exitpriority=10)


def _send_through_rings(queue: Any) -> None:
    """Replace the pipe of a queue of the standard library."""
    queue._reader.close()
    queue._writer.close()
    queue._reader, queue._writer = Pipe(False, CAPACITY_NBYTES)


def _finish(buffer: Any, notempty: threading.Condition) -> None:
    with notempty:
        buffer.append(_END)
        notempty.notify()


def _feed(buffer, notempty, reader, writer, ignore_epipe, on_error, places) -> None:
    """The thread's function. An item stays in the buffer until it is sent, so `put` sends no later item before it."""
    while True:
        with notempty:
            while not buffer:
                notempty.wait()
            content = buffer[0]
        if content is _END:
            reader.close()
            writer.close()
            return
        try:
            writer.give(content)
        except Exception as error:
            if ignore_epipe and getattr(error, "errno", 0) == EPIPE:
                return
            if util.is_exiting():
                util.info("error in queue thread: %s", error)
                return
            places.release()
            on_error(error, content)
        with notempty:
            buffer.popleft()
        content = None  # the thread may now wait for long


class JoinableQueue(Queue, queues.JoinableQueue):
    """A queue with items that are reported done, as `multiprocessing.JoinableQueue`."""

    def _enqueue(self, content: Any) -> None:
        with self._cond:
            super()._enqueue(content)
            self._unfinished_tasks.release()


class SimpleQueue(queues.SimpleQueue):
    """A queue without a buffer in the process, as `multiprocessing.SimpleQueue`: `put` waits while there is no room."""

    def __init__(self, *, ctx: Any) -> None:
        super().__init__(ctx=ctx)
        _send_through_rings(self)
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
