"""Requests of a communicator over several nodes, with the methods of `shmring.Request`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from shmring.base.unraisable import report_unraisable
from shmring.dtypes import DTYPE_CODES
from shmring.errors import BrokenError, MessageError, MessageTimeoutError, MessageTooLongError
from shmring.nodes.flat import Flat
from shmring.nodes.mailbox import OBJECT, OPAQUE, Envelope
from shmring.nodes.wire import Deadline
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG

if TYPE_CHECKING:
    from shmring.nodes.messages import NodesMessages


class NetworkRequest:
    """A pending message to or from another node, or from any source; as `shmring.Request`."""

    # How often a thread that waits checks the state itself: an interrupt may have come before its wake-up.
    first_tick_s = last_tick_s = 0.05

    def __init__(self, messages: NodesMessages) -> None:
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

    def result(self, timeout: float | None = None) -> Envelope | None:
        """The same as `wait`, by the name that futures have for it."""
        return self.wait(timeout)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What `wait` would raise."""
        self._settle(timeout)
        return self._error

    def __await__(self) -> Generator[Any, None, Envelope | None]:
        import asyncio  # programs that do not use it do not pay for its import

        return (yield from asyncio.get_running_loop().run_in_executor(None, self.wait).__await__())

    def done(self) -> bool:
        """Whether it is over, with or without success."""
        if not self._is_over:
            self._messages.poll()
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
        deadline = Deadline(timeout)
        tick_s, last_tick_s = self._messages.ticks_s or (self.first_tick_s, self.last_tick_s)
        while not self.done():
            left_s = deadline.left_s()
            if left_s == 0:
                raise MessageTimeoutError(
                    f"{self._messages.name}: the message is not done in time; it is still under way"
                )
            if self._pending.acquire(timeout=tick_s if left_s is None else min(tick_s, left_s)):
                self._pending.release()
            tick_s = min(2 * tick_s, last_tick_s)


class NetworkSend(NetworkRequest):
    """A message with long content that has not been acknowledged."""

    def __init__(self, messages: NodesMessages, content: np.ndarray, code: int, peer: int) -> None:
        super().__init__(messages)
        self.content = content
        self.code = code
        self.peer = peer
        self.work: Any = None


class NetworkReceive(NetworkRequest):
    """A receive that has not been matched."""

    def __init__(self, messages: NodesMessages, x: Any, opened: Flat, source: int, tag: int) -> None:
        super().__init__(messages)
        self.x = x
        self.opened = opened
        self.source = source
        self.tag = tag

    def fill(self, content: np.ndarray) -> None:
        """Store short content."""
        self.opened.data[: content.nbytes] = content
        self.opened.copy_back()

    def matches(self, envelope: Envelope) -> bool:
        """Whether source and tag match."""
        return self.source in (ANY_SOURCE, envelope.source) and self.tag in (ANY_TAG, envelope.tag)

    def misfit(self, envelope: Envelope) -> Exception | None:
        """The error if the message does not fit the array, else None."""
        where = f"{self._messages.name}: the message from rank {envelope.source} with tag {envelope.tag}"
        if envelope.code == OBJECT:
            return MessageError(f"{where} is a Python object: receive it with recv_object()")
        if envelope.nbytes > self.opened.data.nbytes:
            return MessageTooLongError(
                f"{where} has {envelope.nbytes} bytes, the array to receive it {self.opened.data.nbytes}; "
                "it stays receivable",
                envelope.source, envelope.tag, envelope.nbytes,
            )  # fmt: skip
        if not _may_mix(envelope.code, self.opened.code):
            sent = envelope.dtype or "opaque data"
            return TypeError(
                f"{where} is of {sent}, the array to receive it of {self.opened.dtype}; it stays receivable"
            )
        return None


class ReceiveObject(NetworkReceive):
    """A receive of an object that has been probed: its bytes."""

    def misfit(self, envelope: Envelope) -> Exception | None:
        """None: it was made for this envelope."""
        return None


def _may_mix(sent: int, awaited: int) -> bool:
    return sent == awaited or {sent, awaited} == {OPAQUE, DTYPE_CODES["uint8"]}


class ReceiveAny(NetworkReceive):
    """A receive from any source, on this node or another."""

    # It polls shared memory while it waits for an envelope.
    first_tick_s, last_tick_s = 50e-6, 2e-3

    def done(self) -> bool:
        """Whether it is over; polls shared memory first."""
        if not self._is_over:
            self._messages.poll_local(self)
        return super().done()

class LocalRequest:
    """A request of the node's communicator, with ranks of the whole group."""

    def __init__(self, messages: NodesMessages, request) -> None:
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
