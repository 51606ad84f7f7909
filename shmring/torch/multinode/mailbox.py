"""Envelopes: what a rank sends to one rank of another node for each message, and their format.

An envelope has a fixed maximal size: five integers, then the content of the message if that is short. Long content is
sent separately, in a slot of its own, once its receiver has memory for it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from shmring.dtypes import DTYPE_CODES
from shmring.torch.multinode.transport import ENVELOPE, MESSAGE_CONTENT, GlooTransport
from shmring.torch.tensor_reduce import dtype_name

MAX_UNRECEIVED = 64  # envelopes to one rank that it has not received; another one waits for the first of them
SHORT_NBYTES = 4096

MESSAGE, ACK, LEAVING = range(3)  # kinds of envelopes
_HEAD_NBYTES = 8 * 5  # kind, number, tag, nbytes, dtype as int64, before the content
_NNUMBERS = 1 << 24


class Envelope(NamedTuple):
    """A message: its source, tag, length and dtype, and its content if that is short."""

    source: int
    tag: int
    nbytes: int
    code: int
    number: int
    content: torch.Tensor | None
    """None if the sender still has it."""


class Mailbox:
    """Sends envelopes to one rank."""

    def __init__(self, transport: GlooTransport, peer: int) -> None:
        self._transport = transport
        self._peer = peer
        self._number = 0
        self._unreceived: deque = deque()
        self.is_polled = False  # whether the peer is known to receive envelopes

    def send(self, content: torch.Tensor, tag: int) -> tuple[int, Any]:
        """Send a message. Returns its number, and the pending work if the content is sent separately.

        By one thread at a time, so that envelopes go in the order of their numbers.
        """
        is_short = content.nbytes <= SHORT_NBYTES
        self._number += 1
        number = self._number
        fields = (MESSAGE, number, tag, content.nbytes, code_of(content))
        self._send_envelope(fields, content.view(torch.uint8) if is_short else content.view(torch.uint8)[:0])
        return number, None if is_short else self._transport.send(content, self._peer, slot_of(number))

    def acknowledge(self, number: int) -> None:
        """Acknowledge that long content has been received."""
        self._send_envelope((ACK, number, 0, 0, 0), torch.empty(0, dtype=torch.uint8))

    def announce_leave(self, left_s: float | None) -> None:
        """Send that nothing more will follow, once the peer has received all that was sent before."""
        self.flush(left_s)
        if self.is_polled:  # else the envelope might never be received
            self._send_envelope((LEAVING, 0, 0, 0, 0), torch.empty(0, dtype=torch.uint8))
            self.flush(left_s)

    def _send_envelope(self, fields: tuple[int, ...], content: torch.Tensor) -> None:
        envelope = torch.cat([torch.tensor(fields).view(torch.uint8), content])
        self._unreceived.append(self._transport.send(envelope, self._peer, ENVELOPE))

    def wait_for_room(self, left_s: float | None) -> None:
        """Wait until the peer has at most `MAX_UNRECEIVED` envelopes to receive."""
        self._wait_for_all_but(MAX_UNRECEIVED, left_s)

    def flush(self, left_s: float | None) -> None:
        """Wait until the peer has received all envelopes."""
        self._wait_for_all_but(0, left_s)

    def _wait_for_all_but(self, most: int, left_s: float | None) -> None:
        with suppress(IndexError):  # another thread may take the last one
            while len(self._unreceived) > most:
                self._transport.wait(self._unreceived.popleft(), self._peer, left_s)
                self.is_polled = True


def room_for_envelope() -> torch.Tensor:
    """Memory into which any envelope fits."""
    return torch.empty(_HEAD_NBYTES + SHORT_NBYTES, dtype=torch.uint8)


def read(room: torch.Tensor, source: int) -> tuple[int, Envelope]:
    """The kind and the envelope received in ``room``."""
    kind, number, tag, nbytes, code = room[:_HEAD_NBYTES].view(torch.int64).tolist()
    content = room[_HEAD_NBYTES:][:nbytes] if nbytes <= SHORT_NBYTES else None
    return kind, Envelope(source, tag, nbytes, code, number, content)


def code_of(x: torch.Tensor) -> int:
    """The code of its dtype."""
    return DTYPE_CODES[dtype_name(x.dtype)]


def slot_of(number: int) -> int:
    """The slot in which the long content of message ``number`` is sent."""
    return MESSAGE_CONTENT + number % _NNUMBERS
