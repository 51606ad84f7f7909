"""Between nodes: what a rank tells ranks of other nodes over the network, by gloo.

Gloo moves bytes and trusts that both sides speak of the same call: a message longer than the memory that waits for it
ends the receiver's process. So the first message from one rank to another in each call is an *opening*, for which there
is always room: it says what call its sender is in, and brings the content, if that is short. Long content is asked for
once the opening has been found to agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from shmring.errors import CollectiveTimeoutError, MismatchError, PeerLostError, ShmringError

# Slots: messages between two ranks keep their order in each, and know nothing of those in others.
OPENING, CONTENT, RESULT, LETTER, NOBODYS = range(5)
RUNS = 16  # partial results of the i-th run of ranks have the slot RUNS + i
LETTER_CONTENT = 1 << 24  # and the n-th long letter the slot LETTER_CONTENT + n % 2 ** 24

SHORT_NBYTES = 16384  # content that an opening has room for

# Who waits for another node waits a little longer than those on that node wait for each other, so that the error names
# the rank that is late and not the one that waits for it.
GRACE_S = 0.25

_EVER = timedelta(days=3650)
_HEADER_NBYTES = 192


class TroubleError(Exception):
    """The error that the call is to raise, in ranks of the whole group."""

    def __init__(self, error: ShmringError) -> None:
        super().__init__(str(error))
        self.error = error


class Deadline:
    """The end of a call's time."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self, grace_s: float = 0.0) -> float | None:
        """Seconds until then; None for ever."""
        return None if self._at is None else max(0.0, self._at - time.monotonic() + grace_s)


class Wire:
    """Gloo's connections from this rank to all others.

    Parameters
    ----------
    name : str
        Of the group, for messages.
    store : torch.distributed.Store
        This wire's own.
    rank, size : int
    timeout : datetime.timedelta
        For connecting.
    """

    def __init__(self, name: str, store, rank: int, size: int, timeout: timedelta) -> None:
        self.name = name
        self.rank = rank
        self._size = size
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._is_cut = False

    def send(self, x: torch.Tensor, peer: int, slot: int) -> dist.Work:
        """Begin to send a dense tensor of one dimension. It belongs to the wire until the work has been awaited."""
        return self._begin(self._gloo.send, x, peer, slot)

    def recv(self, x: torch.Tensor, peer: int, slot: int) -> dist.Work:
        """Begin to receive at most as many bytes as ``x`` has. More than that would end this process."""
        return self._begin(self._gloo.recv, x, peer, slot)

    def _begin(self, start: Callable, x: torch.Tensor, peer: int, slot: int) -> dist.Work:
        try:
            return start([x.view(torch.uint8)], peer, slot)
        except RuntimeError as error:
            raise self._trouble(peer, error) from error

    def wait(self, work: dist.Work, peer: int, left_s: float | None = None) -> None:
        """Wait for something under way with this rank; the wire is of no use after an error."""
        # A timeout of zero would be none at all.
        patience = _EVER if left_s is None else timedelta(seconds=max(left_s, 0.001))
        try:
            work.wait(patience)
        except RuntimeError as error:
            raise self._trouble(peer, error) from error

    def _trouble(self, peer: int, error: RuntimeError) -> TroubleError:
        if "Timed out" in str(error):
            late = f"{self.name}: rank {peer}, on another node, did not come in time"
            return TroubleError(CollectiveTimeoutError(late, (peer,)))
        return TroubleError(PeerLostError(f"{self.name}: rank {peer}, on another node, died or left ({error})", peer))

    def cut(self) -> None:
        """End all connections: whoever waits here or at their other ends gets an error at once. Any thread may call."""
        if self._is_cut:
            return
        self._is_cut = True
        # Gloo has no call for it, but does it when it runs out of time with somebody.
        for peer in range(self._size):
            if peer != self.rank and "Timed out" in self._run_out_of_time(peer):
                return

    def _run_out_of_time(self, peer: int) -> str:
        """Wait for what never comes; what gloo says of it."""
        try:
            self._gloo.recv([torch.empty(1)], peer, NOBODYS).wait(timedelta(milliseconds=1))
        except RuntimeError as error:
            return str(error)
        return ""


class Conversation:
    """What a rank says to ranks of other nodes, and hears from them, in one call.

    Two ranks take their first messages to each other for each other's, so these must be meant so.

    Parameters
    ----------
    wire : Wire
    call : str
        What both must be in: the call, and all that they must agree about. At most 150 characters of ASCII.
    deadline : Deadline
    """

    def __init__(self, wire: Wire, call: str, deadline: Deadline) -> None:
        self._wire = wire
        self._call = call
        self.left_s = deadline.left_s
        self._said_to: set[int] = set()
        self._heard_from: set[int] = set()
        self._sent: list[tuple[dist.Work, int]] = []

    def send(self, x: torch.Tensor, peer: int, slot: int = CONTENT) -> None:
        """Send a dense tensor of one dimension, which must stay as it is until `settle`."""
        if peer not in self._said_to:
            self._said_to.add(peer)
            is_short = x.nbytes <= SHORT_NBYTES
            content = x.view(torch.uint8) if is_short else _NOTHING
            header = torch.frombuffer(bytearray(self._header(x)), dtype=torch.uint8)
            self._post(torch.cat([header, content]), peer, OPENING)
            if is_short:
                return
        self._post(x, peer, slot)

    def recv(self, x: torch.Tensor, peer: int, slot: int = CONTENT) -> Callable[[], None]:
        """Begin to receive exactly ``x``; what is returned waits for it. Before that nothing else from this rank."""
        if peer not in self._heard_from:
            self._heard_from.add(peer)
            room = torch.empty(_HEADER_NBYTES + SHORT_NBYTES, dtype=torch.uint8)
            return partial(self._open, self._wire.recv(room, peer, OPENING), room, x, peer, slot)
        return partial(self._await, self._wire.recv(x, peer, slot), peer)

    def stream(self, pieces: Sequence[torch.Tensor], peer: int, slot: int) -> Iterator[None]:
        """Receive these one after the other, and come back when each is there."""
        self.recv(pieces[0], peer, slot)()
        under_way = [self.recv(x, peer, slot) for x in pieces[1:]]
        yield
        for arrive in under_way:
            arrive()
            yield

    def settle(self) -> None:
        """Wait until all that was sent is gone."""
        for work, peer in self._sent:
            self._await(work, peer)

    def _post(self, x: torch.Tensor, peer: int, slot: int) -> None:
        self._sent.append((self._wire.send(x, peer, slot), peer))

    def _await(self, work: dist.Work, peer: int) -> None:
        self._wire.wait(work, peer, self.left_s(GRACE_S))

    def _open(self, opening: dist.Work, room: torch.Tensor, x: torch.Tensor, peer: int, slot: int) -> None:
        self._await(opening, peer)
        said, ours = room[:_HEADER_NBYTES].numpy().tobytes(), self._header(x)
        if said != ours:
            raise self._disagreement(peer, ours, said)
        if x.nbytes <= SHORT_NBYTES:
            x.view(torch.uint8).copy_(room[_HEADER_NBYTES:][: x.nbytes])
        else:
            self._await(self._wire.recv(x, peer, slot), peer)

    def _header(self, x: torch.Tensor) -> bytes:
        text = f"{self._call}, {x.nbytes} bytes first"
        return text.encode("ascii", "replace").ljust(_HEADER_NBYTES)[:_HEADER_NBYTES]

    def _disagreement(self, peer: int, ours: bytes, theirs: bytes) -> TroubleError:
        here, there = (said.decode("ascii", "replace").strip() for said in (ours, theirs))
        rank, name = self._wire.rank, self._wire.name
        text = f"{name}: the ranks disagree: rank {rank} is in {here}, rank {peer} in {there}"
        return TroubleError(MismatchError(text, (rank, peer)))


_NOTHING = torch.empty(0, dtype=torch.uint8)
