"""Transport between nodes: gloo, with a check that both ranks are in the same call.

Gloo requires that sender and receiver agree on the length: a message longer than the posted buffer terminates the
receiver's process. So the first message from one rank to another in each call starts with a *header* of fixed size,
which describes the sender's call, followed by the content if that is short. The receiver compares the header with its
own call before it posts a buffer for long content.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from shmring.errors import CollectiveTimeoutError, MismatchError, PeerLostError, ShmringError

# Slots (gloo tags): messages between two ranks keep their order within a slot, and are independent across slots.
HEADER, CONTENT, RESULT, ENVELOPE, UNUSED = range(5)
RUNS = 16  # partial results of the i-th run of ranks use slot RUNS + i
MESSAGE_CONTENT = 1 << 24  # and long content of message n slot MESSAGE_CONTENT + n % 2 ** 24

SHORT_NBYTES = 16384  # longest content that is sent with the header

# Waits for another node last a little longer than the waits within that node, so that the error names the rank that is
# late and not one that waits for it.
GRACE_S = 0.25

_UNLIMITED = timedelta(days=3650)
_HEADER_NBYTES = 192


class TransportError(Exception):
    """Carries the error that the call raises, with ranks of the whole group."""

    def __init__(self, error: ShmringError) -> None:
        super().__init__(str(error))
        self.error = error


class Deadline:
    """The time at which a call times out."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self, grace_s: float = 0.0) -> float | None:
        """Seconds until then; None: no limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic() + grace_s)


class GlooTransport:
    """Gloo's connections from this rank to all others.

    Parameters
    ----------
    name : str
        Of the group, for error messages.
    store : torch.distributed.Store
        Used by this transport only.
    rank, size : int
    timeout : datetime.timedelta
        Of connecting.
    """

    def __init__(self, name: str, store, rank: int, size: int, timeout: timedelta) -> None:
        self.name = name
        self.rank = rank
        self._size = size
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._is_cut = False

    def send(self, x: torch.Tensor, peer: int, slot: int) -> dist.Work:
        """Begin to send a dense tensor of one dimension. It must not change until the work is done."""
        return self._begin(self._gloo.send, x, peer, slot)

    def recv(self, x: torch.Tensor, peer: int, slot: int) -> dist.Work:
        """Begin to receive at most as many bytes as ``x`` has. More than that would end this process."""
        return self._begin(self._gloo.recv, x, peer, slot)

    def _begin(self, start: Callable, x: torch.Tensor, peer: int, slot: int) -> dist.Work:
        try:
            return start([x.view(torch.uint8)], peer, slot)
        except RuntimeError as error:
            raise self._failure(peer, error) from error

    def wait(self, work: dist.Work, peer: int, left_s: float | None = None) -> None:
        """Wait for pending work with this rank. After an error the transport cannot be used any more."""
        # To gloo, a timeout of zero means no limit.
        timeout = _UNLIMITED if left_s is None else timedelta(seconds=max(left_s, 0.001))
        try:
            work.wait(timeout)
        except RuntimeError as error:
            raise self._failure(peer, error) from error

    def _failure(self, peer: int, error: RuntimeError) -> TransportError:
        if "Timed out" in str(error):
            late = f"{self.name}: rank {peer}, on another node, did not come in time"
            return TransportError(CollectiveTimeoutError(late, (peer,)))
        return TransportError(PeerLostError(f"{self.name}: rank {peer}, on another node, died or left ({error})", peer))

    def cut(self) -> None:
        """Close all connections; pending work fails at once on both sides. Any thread may call."""
        if self._is_cut:
            return
        self._is_cut = True
        # Gloo has no call for this, but closes all connections when a wait times out.
        for peer in range(self._size):
            if peer != self.rank and "Timed out" in self._time_out(peer):
                return

    def _time_out(self, peer: int) -> str:
        """Wait for a message that is never sent; returns gloo's error text."""
        try:
            self._gloo.recv([torch.empty(1)], peer, UNUSED).wait(timedelta(milliseconds=1))
        except RuntimeError as error:
            return str(error)
        return ""


class CallExchange:
    """The messages between this rank and ranks of other nodes in one call.

    The first message of a rank to a peer in a call matches the peer's first receive from it in that call.

    Parameters
    ----------
    transport : GlooTransport
    call : str
        The call and its arguments, as far as both ranks must agree. At most 150 ASCII characters.
    deadline : Deadline
    """

    def __init__(self, transport: GlooTransport, call: str, deadline: Deadline) -> None:
        self._transport = transport
        self._call = call
        self.left_s = deadline.left_s
        self._sent_to: set[int] = set()
        self._received_from: set[int] = set()
        self._sent: list[tuple[dist.Work, int]] = []

    def send(self, x: torch.Tensor, peer: int, slot: int = CONTENT) -> None:
        """Send a dense tensor of one dimension, which must not change until `settle`."""
        if peer not in self._sent_to:
            self._sent_to.add(peer)
            is_short = x.nbytes <= SHORT_NBYTES
            content = x.view(torch.uint8) if is_short else _NOTHING
            header = torch.frombuffer(bytearray(self._header(x)), dtype=torch.uint8)
            self._send(torch.cat([header, content]), peer, HEADER)
            if is_short:
                return
        self._send(x, peer, slot)

    def recv(self, x: torch.Tensor, peer: int, slot: int = CONTENT) -> Callable[[], None]:
        """Begin to receive exactly ``x``. The returned function waits for it; call it before receiving more."""
        if peer not in self._received_from:
            self._received_from.add(peer)
            room = torch.empty(_HEADER_NBYTES + SHORT_NBYTES, dtype=torch.uint8)
            return partial(self._receive_first, self._transport.recv(room, peer, HEADER), room, x, peer, slot)
        return partial(self._await, self._transport.recv(x, peer, slot), peer)

    def stream(self, pieces: Sequence[torch.Tensor], peer: int, slot: int) -> Iterator[None]:
        """Receive these tensors in order; yields when each has arrived."""
        self.recv(pieces[0], peer, slot)()
        under_way = [self.recv(x, peer, slot) for x in pieces[1:]]
        yield
        for wait in under_way:
            wait()
            yield

    def settle(self) -> None:
        """Wait until everything sent has left."""
        for work, peer in self._sent:
            self._await(work, peer)

    def _send(self, x: torch.Tensor, peer: int, slot: int) -> None:
        self._sent.append((self._transport.send(x, peer, slot), peer))

    def _await(self, work: dist.Work, peer: int) -> None:
        self._transport.wait(work, peer, self.left_s(GRACE_S))

    def _receive_first(self, work: dist.Work, room: torch.Tensor, x: torch.Tensor, peer: int, slot: int) -> None:
        self._await(work, peer)
        theirs, ours = room[:_HEADER_NBYTES].numpy().tobytes(), self._header(x)
        if theirs != ours:
            raise self._mismatch(peer, ours, theirs)
        if x.nbytes <= SHORT_NBYTES:
            x.view(torch.uint8).copy_(room[_HEADER_NBYTES:][: x.nbytes])
        else:
            self._await(self._transport.recv(x, peer, slot), peer)

    def _header(self, x: torch.Tensor) -> bytes:
        text = f"{self._call}, {x.nbytes} bytes first"
        return text.encode("ascii", "replace").ljust(_HEADER_NBYTES)[:_HEADER_NBYTES]

    def _mismatch(self, peer: int, ours: bytes, theirs: bytes) -> TransportError:
        here, there = (header.decode("ascii", "replace").strip() for header in (ours, theirs))
        rank, name = self._transport.rank, self._transport.name
        text = f"{name}: the ranks disagree: rank {rank} is in {here}, rank {peer} in {there}"
        return TransportError(MismatchError(text, (rank, peer)))


_NOTHING = torch.empty(0, dtype=torch.uint8)
