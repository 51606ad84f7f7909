"""The messages of one call between this rank and ranks of other nodes, with a check that both are in the same call.

The first message from one rank to another in each call has a *header* that describes the call, and the content behind
it if that is short. Long content travels beside the header, under a number made from the call, so that it never meets a
receive of another call: an engine may require that both sides agree on the length (gloo ends the process otherwise). So
the check costs no round trip.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from shmring.errors import MismatchError
from shmring.nodes.wire import GRACE_S, Channel, Deadline, Wire, WireError

SHORT_NBYTES = 16384  # longest content that is sent with the header
HEADER_NBYTES = 192

_STREAMS = 1 << 14


class CallExchange:
    """See the module.

    Parameters
    ----------
    wire : Wire
    call : str
        The call and its arguments, as far as all ranks must agree. At most 150 ASCII characters.
    deadline : Deadline
    """

    def __init__(self, wire: Wire, call: str, deadline: Deadline) -> None:
        self._wire = wire
        self._call = call
        self._numbers = zlib.crc32(call.encode()) % _STREAMS * _STREAMS
        self.left_s = deadline.left_s
        self._sent_to: set[int] = set()
        self._received_from: set[int] = set()
        self._sent: list[tuple[Any, int]] = []
        self._copied: list[tuple[Any, int]] = []
        self._pending: dict[tuple[int, int], list] = {}

    def send(self, data: np.ndarray, peer: int, stream: int) -> None:
        """Begin to send; the data must not change until `settle`."""
        if peer not in self._sent_to:
            self._sent_to.add(peer)
            nbytes = data.nbytes if data.nbytes <= SHORT_NBYTES else 0
            message = np.empty(HEADER_NBYTES + nbytes, np.uint8)
            message[:HEADER_NBYTES] = np.frombuffer(self._header(data.nbytes), np.uint8)
            message[HEADER_NBYTES:] = data[:nbytes]
            self._copied.append((self._wire.send(message, peer, Channel.HEADER), peer))
            if data.nbytes <= SHORT_NBYTES:
                return
        self._sent.append((self._wire.send(data, peer, Channel.CONTENT, self._number(stream)), peer))

    def recv(self, data: np.ndarray, peer: int, stream: int) -> None:
        """Begin to receive exactly ``data``."""
        room = header = content = None
        is_first = peer not in self._received_from
        if is_first:
            self._received_from.add(peer)
            room = np.empty(HEADER_NBYTES + SHORT_NBYTES, np.uint8)
            header = self._wire.recv(room, peer, Channel.HEADER)
        if not is_first or data.nbytes > SHORT_NBYTES:
            content = self._wire.recv(data, peer, Channel.CONTENT, self._number(stream))
        self._pending.setdefault((peer, stream), []).append((data, room, header, content))

    def wait(self, peer: int, stream: int) -> None:
        """Wait for the first `recv` of this peer and stream that has not been waited for."""
        data, room, header, content = self._pending[peer, stream].pop(0)
        if header is not None:
            self._wire.wait(header, peer, self.left_s(GRACE_S))
            theirs, ours = room[:HEADER_NBYTES].tobytes(), self._header(data.nbytes)
            if theirs != ours:
                raise self._mismatch(peer, ours, theirs)
            if content is None:
                data[:] = room[HEADER_NBYTES:][: data.nbytes]
        if content is not None:
            self._wire.wait(content, peer, self.left_s(GRACE_S))

    def settle(self) -> None:
        """Wait until everything sent may be overwritten."""
        for work, peer in self._sent:
            self._wire.wait(work, peer, self.left_s(GRACE_S))
        self._sent.clear()

    def finish(self) -> None:
        """Wait until everything sent has left."""
        self.settle()
        for work, peer in self._copied:
            self._wire.wait(work, peer, self.left_s(GRACE_S))

    def _number(self, stream: int) -> int:
        return self._numbers + stream % _STREAMS

    def _header(self, nbytes: int) -> bytes:
        text = f"{self._call}, {nbytes} bytes first"
        return text.encode("ascii", "replace").ljust(HEADER_NBYTES)[:HEADER_NBYTES]

    def _mismatch(self, peer: int, ours: bytes, theirs: bytes) -> WireError:
        here, there = (header.decode("ascii", "replace").strip() for header in (ours, theirs))
        rank, name = self._wire.rank, self._wire.name
        text = f"{name}: the ranks disagree: rank {rank} is in {here}, rank {peer} in {there}"
        return WireError(MismatchError(text, (rank, peer)))
