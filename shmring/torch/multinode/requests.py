"""Messages under way of a communicator of several nodes, as `shmring.Request` is one of a communicator's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from shmring._runtime import report_unraisable
from shmring.dtypes import DTYPES
from shmring.errors import BrokenError, MessageTimeoutError, MessageTooLongError
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG
from shmring.torch.multinode.mailbox import Letter, code_of

if TYPE_CHECKING:
    from shmring.torch.multinode.messages import NodeLetters

# Somebody who waits for a message from anybody must look into shared memory, too.
FIRST_TICK_S, LAST_TICK_S = 50e-6, 2e-3


class Request:
    """A message under way to or from another node, or from anybody; as `shmring.Request`."""

    def __init__(self, letters: NodeLetters) -> None:
        self._letters = letters
        self._is_over = False
        self._message: Letter | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def wait(self, timeout: float | None = None) -> Letter | None:
        """Wait until it is done; `MessageTimeoutError` if that takes longer, and it goes on."""
        self._settle(timeout)
        if self._error is not None:
            raise self._error
        return self._message

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What `wait` would raise."""
        self._settle(timeout)
        return self._error

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have ``callback(request)`` called once it is over, by the thread that finds it so."""
        with self._letters.news:
            if not self._is_over:
                self._callbacks.append(callback)
                return
        callback(self)

    def end(self, message: Letter | None = None, error: Exception | None = None) -> None:
        """It is over."""
        with self._letters.news:
            if self._is_over:
                return
            self._message, self._error, self._is_over = message, error, True
            callbacks, self._callbacks = self._callbacks, []
            self._letters.news.notify_all()
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as raised:
                report_unraisable(raised, callback)

    def _settle(self, timeout: float | None) -> None:
        with self._letters.news:
            if not self._letters.news.wait_for(self.done, timeout):
                raise MessageTimeoutError(f"{self._letters.name}: a message is not done in time; it goes on")


class Send(Request):
    """A long letter whose content has not been taken yet."""

    def __init__(self, letters: NodeLetters, content: torch.Tensor, peer: int) -> None:
        super().__init__(letters)
        self.content = content
        self.peer = peer
        self.work: Any = None


class Receive(Request):
    """A receive that waits for its message."""

    def __init__(self, letters: NodeLetters, x: torch.Tensor, source: int, tag: int) -> None:
        super().__init__(letters)
        self.x = x
        self.source = source
        self.tag = tag

    def wants(self, letter: Letter) -> bool:
        """Whether it is for this letter, fits or not."""
        return self.source in (ANY_SOURCE, letter.source) and self.tag in (ANY_TAG, letter.tag)

    def misfit(self, letter: Letter) -> Exception | None:
        """Why this letter cannot be received so."""
        where = f"{self._letters.name}: the message from rank {letter.source} with tag {letter.tag}"
        if letter.nbytes > self.x.nbytes:
            return MessageTooLongError(
                f"{where} has {letter.nbytes} bytes, the tensor to receive it {self.x.nbytes}; it stays receivable",
                letter.source, letter.tag, letter.nbytes,
            )  # fmt: skip
        if letter.code != code_of(self.x):
            sent = DTYPES[letter.code].name
            return TypeError(f"{where} is of {sent}, the tensor to receive it of {self.x.dtype}; it stays receivable")
        return None


class FromAnybody(Receive):
    """A receive of whatever comes first, from this node or another."""

    def done(self) -> bool:
        """Whether it is over; looks into shared memory first."""
        if not self._is_over:
            self._letters.look_here(self)
        return self._is_over

    def _settle(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        tick_s = FIRST_TICK_S
        while not self.done():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                super()._settle(0)
            with self._letters.news:
                self._letters.news.wait_for(lambda: self._is_over, tick_s if left_s is None else min(tick_s, left_s))
            tick_s = min(2 * tick_s, LAST_TICK_S)


class OnThisNode:
    """A request of the node's communicator, told in ranks of the whole group."""

    def __init__(self, letters: NodeLetters, request) -> None:
        self._letters = letters
        self._request = request

    def wait(self, timeout: float | None = None):
        """As `shmring.Request.wait`."""
        try:
            return self._letters.told_to_all(self._request.wait(timeout))
        except BrokenError as error:
            raise self._letters._broken_by(error) from error

    def exception(self, timeout: float | None = None):
        """As `shmring.Request.exception`."""
        return self._request.exception(timeout)

    def done(self) -> bool:
        """As `shmring.Request.done`."""
        return self._request.done()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """As `shmring.Request.add_done_callback`."""
        self._request.add_done_callback(lambda _: callback(self))
