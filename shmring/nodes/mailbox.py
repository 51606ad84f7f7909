"""Envelopes: what a rank sends to one rank of another node for each message, and their format.

An envelope has a fixed maximal size: five integers, then the content of the message if that is short. Long content is
sent separately, under the number of the message, once its receiver has memory for it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from shmring.dtypes import DTYPES
from shmring.nodes.wire import Channel, Wire

MAX_UNRECEIVED = 64  # envelopes to one rank that it has not received; another one waits for the first of them
SHORT_NBYTES = 4096

MESSAGE, ACK, LEAVING = range(3)  # kinds of envelopes
_HEAD_NBYTES = 8 * 5  # kind, number, tag, nbytes, dtype as int64, before the content

OPAQUE, OBJECT = -1, -2  # in place of a dtype


class Envelope(NamedTuple):
    """A message: its source, tag, length and dtype, and its content if that is short."""

    source: int
    tag: int
    nbytes: int
    code: int
    number: int
    content: np.ndarray | None
    """None if the sender still has it."""

    @property
    def is_object(self) -> bool:
        """Whether it was sent by ``send_object``."""
        return self.code == OBJECT

    @property
    def dtype(self) -> str | None:
        """The name of the dtype; None for objects and opaque data."""
        return DTYPES[self.code].name if self.code >= 0 else None

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of elements; of bytes where there is no dtype."""
        return self.nbytes // (DTYPES[self.code].itemsize if self.code >= 0 else 1)


class Mailbox:
    """Sends envelopes to one rank."""

    def __init__(self, wire: Wire, peer: int) -> None:
        self._wire = wire
        self._peer = peer
        self._number = 0
        self._unreceived: deque = deque()
        self.is_polled = False  # whether the peer is known to receive envelopes

    def send(self, content: np.ndarray, code: int, tag: int) -> tuple[int, Any]:
        """Send a message of bytes. Returns its number, and the pending work if the content is sent separately.

        By one thread at a time, so that envelopes go in the order of their numbers.
        """
        is_short = content.nbytes <= SHORT_NBYTES
        self._number += 1
        number = self._number
        self._send_envelope((MESSAGE, number, tag, content.nbytes, code), content if is_short else _NOTHING)
        return number, None if is_short else self._wire.send(content, self._peer, Channel.MESSAGE, number)

    def acknowledge(self, number: int) -> None:
        """Acknowledge that long content has been received."""
        self._send_envelope((ACK, number, 0, 0, 0), _NOTHING)

    def announce_leave(self, left_s: float | None) -> None:
        """Send that nothing more will follow, once the peer has received all that was sent before."""
        self.flush(left_s)
        if self.is_polled:  # else the envelope might never be received
            self._send_envelope((LEAVING, 0, 0, 0, 0), _NOTHING)
            self.flush(left_s)

    def _send_envelope(self, fields: tuple[int, ...], content: np.ndarray) -> None:
        envelope = np.concatenate([np.array(fields, np.int64).view(np.uint8), content])
        self._unreceived.append(self._wire.send(envelope, self._peer, Channel.ENVELOPE))

    def wait_for_room(self, left_s: float | None) -> None:
        """Wait until the peer has at most `MAX_UNRECEIVED` envelopes to receive."""
        self._wait_for_all_but(MAX_UNRECEIVED, left_s)

    def flush(self, left_s: float | None) -> None:
        """Wait until the peer has received all envelopes."""
        self._wait_for_all_but(0, left_s)

    def _wait_for_all_but(self, most: int, left_s: float | None) -> None:
        with suppress(IndexError):  # another thread may take the last one
            while len(self._unreceived) > most:
                self._wire.wait(self._unreceived.popleft(), self._peer, left_s)
                self.is_polled = True


def room_for_envelope() -> np.ndarray:
    """Memory into which any envelope fits."""
    return np.empty(_HEAD_NBYTES + SHORT_NBYTES, np.uint8)


def read(room: np.ndarray, source: int) -> tuple[int, Envelope]:
    """The kind and the envelope received in ``room``."""
    kind, number, tag, nbytes, code = room[:_HEAD_NBYTES].view(np.int64).tolist()
    content = room[_HEAD_NBYTES:][:nbytes] if nbytes <= SHORT_NBYTES else None
    return kind, Envelope(source, tag, nbytes, code, number, content)


_NOTHING = np.empty(0, np.uint8)
