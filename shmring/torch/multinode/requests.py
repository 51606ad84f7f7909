"""Requests of a communicator of several nodes, with the methods of `shmring.Request`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from shmring._runtime import report_unraisable
from shmring.dtypes import DTYPES
from shmring.errors import BrokenError, MessageTimeoutError, MessageTooLongError
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG
from shmring.torch.multinode.mailbox import Envelope, code_of

if TYPE_CHECKING:
    from shmring.torch.multinode.messages import MultinodeMessages

# A receive from any source polls shared memory while it waits for an envelope.
FIRST_TICK_S, LAST_TICK_S = 50e-6, 2e-3


class NetworkRequest:
    """A pending message to or from another node, or from any source; as `shmring.Request`."""

    def __init__(self, messages: MultinodeMessages) -> None:
        self._messages = messages
        self._is_over = False
        self._message: Envelope | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], None]] = []

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
        with self._messages.lock:
            if not self._is_over:
                self._callbacks.append(callback)
                return
        callback(self)

    def end(self, message: Envelope | None = None, error: Exception | None = None) -> None:
        """Note that it is over, with its result or error; wake waiters and run callbacks."""
        with self._messages.lock:
            if self._is_over:
                return
            self._message, self._error, self._is_over = message, error, True
            callbacks, self._callbacks = self._callbacks, []
            self._messages.changed.notify_all()
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as raised:
                report_unraisable(raised, callback)

    def _settle(self, timeout: float | None) -> None:
        with self._messages.lock:
            if not self._messages.changed.wait_for(self.done, timeout):
                raise MessageTimeoutError(
                    f"{self._messages.name}: the message is not done in time; it is still under way"
                )


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

    def done(self) -> bool:
        """Whether it is over; polls shared memory first."""
        if not self._is_over:
            self._messages.poll_local(self)
        return self._is_over

    def _settle(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        tick_s = FIRST_TICK_S
        while not self.done():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                super()._settle(0)
            with self._messages.lock:
                self._messages.changed.wait_for(
                    lambda: self._is_over, tick_s if left_s is None else min(tick_s, left_s)
                )
            tick_s = min(2 * tick_s, LAST_TICK_S)


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
