"""`torch.distributed`'s messages from one rank to one other, and the thread that moves long ones meanwhile.

The core moves messages while somebody is in a call about them. A short one lies in its lane whole; but the sender of a
long one waits for its receiver to be in such a call, and torch's programs may do anything between `irecv` and `wait`.
So as soon as more is under way than lanes hold, a thread waits for all of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

import torch

from shmring.errors import ShmringError
from shmring.p2p.requests import ANY_SOURCE
from shmring.torch.dispatch import Calls
from shmring.torch.errors import torch_form
from shmring.torch.profiler import is_profiled, recording
from shmring.torch.tensor_list import movable
from shmring.torch.work import PendingWork

MOST_SHORT = 64  # short messages under way that are left to themselves: lanes hold 256 each
TICK_S = 0.05  # how soon the thread notices that the group is to end
PATIENCE_S = 0.001  # before the thread takes over: mostly the program waits itself, which is quicker undisturbed


class MessageWork(PendingWork):
    """A message under way."""

    def __init__(self, request, tensor: torch.Tensor, nbytes: int | None, timeout_s: float | None, mover) -> None:
        super().__init__(request, [tensor], timeout_s)
        self._nbytes = nbytes  # that the message must have; None for a send
        self._mover = mover

    def _finish(self, patience_s: float | None) -> None:
        message = self._under_way.wait(patience_s or self._timeout_s)
        if message is not None and message.nbytes != self._nbytes:
            raise RuntimeError(
                f"the message from rank {message.source} has {message.nbytes} bytes, and the tensor to receive it "
                f"{self._nbytes}: they must be equal"
            )

    def source_rank(self) -> int:
        """The rank, in the group, that the message came from."""
        return self._under_way.wait(self._timeout_s).source

    _source_rank = source_rank

    def _when_over(self, call) -> None:
        super()._when_over(call)
        self._mover.add(self._under_way)  # nobody may ever wait for a future's request


class Messages(Calls):
    """The messages of `shmring.torch.ProcessGroup`, as torch calls them; ranks are those of the group."""

    _mover: Mover

    def send(self, tensors, dst, tag=0):
        """Begin to send a tensor; it may not be changed before the work is done."""
        x = movable(tensors[0])
        return self._sent_off(self._begin("send", self._comm.isend, x, dst, tag), tensors[0], None)

    def recv(self, tensors, src, tag=0):
        """Begin to receive a tensor of exactly this size from one rank."""
        return self._receive("recv", tensors[0], src, tag)

    def recv_anysource(self, tensors, tag=0):
        """Begin to receive a tensor of exactly this size from whoever sends first."""
        return self._receive("recvAnySource", tensors[0], ANY_SOURCE, tag)

    def _receive(self, name, tensor, src, tag):
        x = movable(tensor)
        return self._sent_off(self._begin(name, self._comm.irecv, x, src, tag), tensor, x.nbytes)

    def _begin(self, name, start, x, peer, tag):
        if is_profiled():
            with recording(f"{self._recorded_as}:{name}", (x,)):
                return self._begin_unseen(start, x, peer, tag)
        return self._begin_unseen(start, x, peer, tag)

    def _begin_unseen(self, start, x, peer, tag):
        try:
            return start(x, peer, tag)
        except ShmringError as error:
            raise torch_form(error, self._timeout_s) from error

    def _sent_off(self, request, tensor, nbytes):
        if not request.done():
            if nbytes is None:
                self._mover.add(request, is_send=True)  # more than its lane holds
            else:
                self._mover.note(request, nbytes)
        return self._noted(MessageWork(request, tensor, nbytes, self._timeout_s, self._mover))


class Mover:
    """The thread that moves messages while the program does something else; there is none before it is needed."""

    def __init__(self, comm) -> None:
        self._name = comm.name
        self._pair_queue_nbytes = comm.config.pair_queue_limit(comm.size) // 2
        self._under_way: deque = deque()  # noted, in the order of submission
        self._nbytes = 0
        self._given: deque = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def note(self, request, nbytes: int) -> None:
        """Take note of a message to be received, and move all of them if they are more than a lane holds."""
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
        """Move this message from now on."""
        with self._news:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"shmring {self._name} messages", daemon=True)
                self._thread.start()
            self._given.append((request, is_send))
            self._news.notify()

    def close(self, timeout_s: float | None) -> None:
        """Let what is being sent come to its end, for so long, and end the thread."""
        with self._news:
            thread, self._ended = self._thread, True
            self._news.notify()
        if thread is not None:
            thread.join(timeout_s)

    def _serve(self) -> None:
        while True:
            with self._news:
                while not self._given and not self._ended:
                    self._news.wait()
                if not self._given:
                    return
                request, is_send = self._given.popleft()
            if not request.done():
                time.sleep(PATIENCE_S)
            while not request.done() and (is_send or not self._ended):
                with suppress(ShmringError, TypeError):  # those of the message are its waiter's
                    request.wait(TICK_S)
            del request
