"""Requests of a communicator of several nodes, with the methods of `shmring.Request`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from shmring._runtime import report_unraisable
from shmring.dtypes import DTYPES
from shmring.errors import BrokenError, MessageTimeoutError, MessageTooLongError
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG
from shmring.torch.multinode.mailbox import Envelope, code_of
from shmring.torch.multinode.transport import Deadline

if TYPE_CHECKING:
    from shmring.torch.multinode.messages import MultinodeMessages


class NetworkRequest:
    """A pending message to or from another node, or from any source; as `shmring.Request`."""

    # How often a thread that waits checks the state itself: an interrupt may have come before its wake-up.
    first_tick_s = last_tick_s = 0.05

    def __init__(self, messages: MultinodeMessages) -> None:
        self._messages = messages
        self._is_over = False
        self._message: Envelope | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._pending = threading.Lock()  # taken until it is over; then each thread that waits lets the next one in
        self._pending.acquire()

    def wait(self, timeout: float | None = None) -> Envelope | None:
        """Wait until it is done. After `MessageTimeoutError` it is still under way."""
        self._settle(timeout)
        if self._error is not None:
            raise self._error
        return self._message

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What `wait` would raise."""
        self._settle(timeout)
        return self._error

    def done(self) -> bool:
        """Whether it is over, with or without success."""
        return self._is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have ``callback(request)`` called once it is over, by the thread that ends it."""
        if not self._messages.turn.run(self._append, callback):
            callback(self)

    def _append(self, callback: Callable[[Any], None]) -> bool:
        """In the turn: False if it is over."""
        if not self._is_over:
            self._callbacks.append(callback)
        return not self._is_over

    def end(self, message: Envelope | None = None, error: Exception | None = None) -> None:
        """Note that it is over, with its result or error; wake waiters and run callbacks."""
        for callback in self._messages.turn.run(self._end, message, error):
            try:
                callback(self)
            except BaseException as raised:
                report_unraisable(raised, callback)

    def _end(self, message: Envelope | None, error: Exception | None) -> list[Callable[[Any], None]]:
        """In the turn: the callbacks to run, none if it was over before."""
        if self._is_over:
            return []
        self._message, self._error, self._is_over = message, error, True
        self._pending.release()
        callbacks, self._callbacks = self._callbacks, []
        return callbacks

    def _settle(self, timeout: float | None) -> None:
        deadline, tick_s = Deadline(timeout), self.first_tick_s
        while not self.done():
            left_s = deadline.left_s()
            if left_s == 0:
                raise MessageTimeoutError(
                    f"{self._messages.name}: the message is not done in time; it is still under way"
                )
            if self._pending.acquire(timeout=tick_s if left_s is None else min(tick_s, left_s)):
                self._pending.release()
            tick_s = min(2 * tick_s, self.last_tick_s)


class NetworkSend(NetworkRequest):
    """A message with long content that has not been acknowledged."""

    def __init__(self, messages: MultinodeMessages, content: torch.Tensor, peer: int) -> None:
        super().__init__(messages)
        self.content = content
        self.peer = peer
        self.work: Any = None


class NetworkReceive(NetworkRequest):
    """A receive that has not been matched."""

    def __init__(self, messages: MultinodeMessages, x: torch.Tensor, source: int, tag: int) -> None:
        super().__init__(messages)
        self.x = x
        self.source = source
        self.tag = tag

    def matches(self, envelope: Envelope) -> bool:
        """Whether source and tag match."""
        return self.source in (ANY_SOURCE, envelope.source) and self.tag in (ANY_TAG, envelope.tag)

    def misfit(self, envelope: Envelope) -> Exception | None:
        """The error if the message does not fit the tensor, else None."""
        where = f"{self._messages.name}: the message from rank {envelope.source} with tag {envelope.tag}"
        if envelope.nbytes > self.x.nbytes:
            return MessageTooLongError(
                f"{where} has {envelope.nbytes} bytes, the tensor to receive it {self.x.nbytes}; it stays receivable",
                envelope.source, envelope.tag, envelope.nbytes,
            )  # fmt: skip
        if envelope.code != code_of(self.x):
            sent = DTYPES[envelope.code].name
            return TypeError(f"{where} is of {sent}, the tensor to receive it of {self.x.dtype}; it stays receivable")
        return None


class ReceiveAny(NetworkReceive):
    """A receive from any source, on this node or another."""

    # It polls shared memory while it waits for an envelope.
    first_tick_s, last_tick_s = 50e-6, 2e-3

    def done(self) -> bool:
        """Whether it is over; polls shared memory first."""
        if not self._is_over:
            self._messages.poll_local(self)
        return self._is_over



class LocalRequest:
    """A request of the node's communicator, with ranks of the whole group."""

    def __init__(self, messages: MultinodeMessages, request) -> None:
        self._messages = messages
        self._request = request

    def wait(self, timeout: float | None = None):
        """As `shmring.Request.wait`."""
        try:
            return self._messages.in_group_ranks(self._request.wait(timeout))
        except BrokenError as error:
            raise self._messages._break(error) from error

    def exception(self, timeout: float | None = None):
        """As `shmring.Request.exception`."""
        return self._request.exception(timeout)

    def done(self) -> bool:
        """As `shmring.Request.done`."""
        return self._request.done()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """As `shmring.Request.add_done_callback`."""
        self._request.add_done_callback(lambda _: callback(self))
