"""Pending messages of `torch.distributed`, and the thread that makes progress on long ones.

The core moves messages only while a thread is in a point-to-point call. A short message fits its pair queue, but the
sender of a long one waits until the receiver is in such a call, and a torch program may do anything between `irecv` and
`wait`. So once more is pending than a pair queue holds, a thread waits for all pending messages.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from queue import SimpleQueue

import torch

from shmring.errors import ShmringError
from shmring.torch.work import PendingWork

MOST_SHORT = 64  # pending short receives that need no thread: a pair queue holds 256 messages
TICK_S = 0.05  # how often the thread checks whether the group is closing
DELAY_S = 0.001  # before the thread takes over: usually the program waits itself, which is faster without it


class MessageWork(PendingWork):
    """A pending message."""

    def __init__(self, request, tensor: torch.Tensor, nbytes: int | None, timeout_s: float | None, progress) -> None:
        super().__init__(request, [tensor], timeout_s)
        self._nbytes = nbytes  # required length; None for a send
        self._progress = progress

    def _finish(self, timeout_s: float | None) -> None:
        message = self._under_way.wait(timeout_s or self._timeout_s)
        if message is not None and message.nbytes != self._nbytes:
            raise RuntimeError(
                f"the message from rank {message.source} has {message.nbytes} bytes, the tensor to receive it "
                f"{self._nbytes}: they must be equal"
            )

    def source_rank(self) -> int:
        """The rank, in the group, that the message came from."""
        return self._under_way.wait(self._timeout_s).source

    _source_rank = source_rank

    def _when_over(self, call) -> None:
        super()._when_over(call)
        self._progress.add(self._under_way)  # the program may never wait for a request that has a future


class MessageProgress:
    """A thread that waits for messages while the program does something else; started when it is needed."""

    def __init__(self, comm) -> None:
        self._name = comm.name
        self._pair_queue_nbytes = comm.config.pair_queue_limit(comm.size) // 2
        self._under_way: deque = deque()  # noted receives with their sizes, in the order of the calls
        self._nbytes = 0
        self._requests: SimpleQueue = SimpleQueue()  # with None as the last one; no lock that an interrupt could leave
        self._thread: threading.Thread | None = None
        self._ended = False

    def note(self, request, nbytes: int) -> None:
        """Note a pending receive. Hand all of them to the thread if they are more than a pair queue holds."""
        while self._under_way and self._under_way[0][0].done():
            self._nbytes -= self._under_way.popleft()[1]
        self._under_way.append((request, nbytes))
        self._nbytes += nbytes
        if self._nbytes > self._pair_queue_nbytes or len(self._under_way) > MOST_SHORT:
            for one, _ in self._under_way:
                self.add(one)
            self._under_way.clear()
            self._nbytes = 0

    def add(self, request, is_send: bool = False) -> None:
        """Hand a request to the thread."""
        self._requests.put((request, is_send))
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=f"shmring {self._name} messages", daemon=True)
            thread.start()
            self._thread = thread  # if an interrupt prevents that, a second thread serves the same queue

    def close(self, timeout_s: float | None) -> None:
        """Wait up to ``timeout_s`` until pending sends are done, and end the thread."""
        self._ended = True
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _serve(self) -> None:
        while (item := self._requests.get()) is not None:
            request, is_send = item
            if not request.done():
                time.sleep(DELAY_S)
            while not request.done() and (is_send or not self._ended):
                with suppress(ShmringError, TypeError):  # the caller of the work's wait() gets them
                    request.wait(TICK_S)
            del request, item
        self._requests.put(None)  # for a second thread
