"""Letters as they go over the wire to one rank of another node, and what stands in them.

A letter has a fixed form: numbers, and the content of its message, if that is short. A long content goes by itself, in
a slot of its own, when its receiver has memory for it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from shmring.dtypes import DTYPE_CODES
from shmring.torch.multinode.transport import LETTER, LETTER_CONTENT, Wire
from shmring.torch.tensor_reduce import dtype_name

MOST_ON_THE_WAY = 64  # short letters to one rank that nobody has listened to yet; the next one waits for the first
SHORT_NBYTES = 4096

MESSAGE, TAKEN, GOODBYE = range(3)  # kinds of letters
_NUMBERS = 5  # kind, number, tag, nbytes, dtype: before the content, as int64
_HEAD_NBYTES = 8 * _NUMBERS
_NNUMBERS = 1 << 24


class Letter(NamedTuple):
    """A message: who sent it, with what, how long it is."""

    source: int
    tag: int
    nbytes: int
    code: int
    number: int
    content: torch.Tensor | None
    """None if it is still with its sender."""


class Post:
    """Letters to one rank."""

    def __init__(self, wire: Wire, peer: int) -> None:
        self._wire = wire
        self._peer = peer
        self._lock = threading.Lock()
        self._number = 0
        self._on_the_way: deque = deque()
        self.is_listened_to = False  # for sure

    def send(self, content: torch.Tensor, tag: int) -> tuple[int, Any]:
        """Send a message; its number, and what is under way if the content awaits being taken."""
        is_short = content.nbytes <= SHORT_NBYTES
        with self._lock:  # letters are to go in the order of their numbers
            self._number += 1
            number = self._number
            numbers = (MESSAGE, number, tag, content.nbytes, code_of(content))
            self._send_letter(numbers, content.view(torch.uint8) if is_short else content.view(torch.uint8)[:0])
            work = None if is_short else self._wire.send(content, self._peer, slot_of(number))
        return number, work

    def confirm(self, number: int) -> None:
        """Say that the content of a letter has been taken."""
        self._send_letter((TAKEN, number, 0, 0, 0), torch.empty(0, dtype=torch.uint8))

    def say_goodbye(self, left_s: float | None) -> None:
        """Say that nothing more will come, once the other side has listened to all that was sent before."""
        self.flush(left_s)
        if self.is_listened_to:  # else nobody might ever take it
            self._send_letter((GOODBYE, 0, 0, 0, 0), torch.empty(0, dtype=torch.uint8))
            self.flush(left_s)

    def _send_letter(self, numbers: tuple[int, ...], content: torch.Tensor) -> None:
        letter = torch.cat([torch.tensor(numbers).view(torch.uint8), content])
        self._on_the_way.append(self._wire.send(letter, self._peer, LETTER))

    def wait_for_room(self, left_s: float | None) -> None:
        """Wait until the other side has not too many letters to listen to."""
        self._wait_for_all_but(MOST_ON_THE_WAY, left_s)

    def flush(self, left_s: float | None) -> None:
        """Wait until the other side has listened to all."""
        self._wait_for_all_but(0, left_s)

    def _wait_for_all_but(self, most: int, left_s: float | None) -> None:
        with suppress(IndexError):  # several threads may be at it
            while len(self._on_the_way) > most:
                self._wire.wait(self._on_the_way.popleft(), self._peer, left_s)
                self.is_listened_to = True


def room_for_letter() -> torch.Tensor:
    """Memory into which any letter fits."""
    return torch.empty(_HEAD_NBYTES + SHORT_NBYTES, dtype=torch.uint8)


def read(room: torch.Tensor, source: int) -> tuple[int, Letter]:
    """The letter that has come, and its kind."""
    kind, number, tag, nbytes, code = room[:_HEAD_NBYTES].view(torch.int64).tolist()
    content = room[_HEAD_NBYTES:][:nbytes] if nbytes <= SHORT_NBYTES else None
    return kind, Letter(source, tag, nbytes, code, number, content)


def code_of(x: torch.Tensor) -> int:
    """The number of its element type."""
    return DTYPE_CODES[dtype_name(x.dtype)]


def slot_of(number: int) -> int:
    """The slot in which the content of a long letter goes."""
    return LETTER_CONTENT + number % _NNUMBERS
