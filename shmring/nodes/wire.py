"""The wire: the interface of the engine between the nodes of a communicator.

Implementations: gloo through torch (`shmring.torch.gloo_wire`) and MPI (`shmring.nodes.mpi_wire`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from shmring.errors import ShmringError

if TYPE_CHECKING:
    from shmring.nodes.transfers import Transfers

# Waits for another node last a little longer than the waits within that node, so that the error names the rank that is
# late and not one that waits for it.
GRACE_S = 0.25
ANSWER_S = 0.5  # how long a rank whose call failed waits for an earlier error of another node
AFTER_S = ANSWER_S + 2 * GRACE_S  # for waiting on a rank of the own node that may itself wait for another node
SHORT_NBYTES = 4096  # longest content of a message that is sent in its envelope
ENVELOPE_NBYTES = 5 * 8 + SHORT_NBYTES


class Channel(IntEnum):
    """Messages between two ranks keep their order within a channel and a number, and are independent otherwise."""

    HEADER = 0  # of a call, with short content
    CONTENT = 1  # of a call
    ENVELOPE = 2  # of a message, with short content (nodes/messages.pyx)
    MESSAGE = 3  # long content of a message


class WireError(Exception):
    """Carries the error that the call raises, with ranks of the whole group."""

    def __init__(self, error: ShmringError) -> None:
        super().__init__(str(error))
        self.error = error


class Wire(ABC):
    """Connections from this rank to the ranks of other nodes. Data are arrays of uint8.

    Attributes
    ----------
    name : str
        The name of the group in error messages.
    rank, size : int
    is_passive : bool
        Whether messages make progress only in calls of the wire.
    inbox : deque of (ndarray, int)
        Envelopes that have arrived, and the rank that sent each, in the order in which that rank sent them.
    short_nbytes : int
        Longest content of a call that is sent with its header.
    transfers : Transfers
        Sends and receives for compiled code.
    look_at_node : callable
        Set by the communicator: raises if a rank of this node has died.
    """

    name: str
    rank: int
    size: int
    is_passive = False
    short_nbytes = 16384
    transfers: Transfers
    look_at_node: Callable[[], None]

    def __init__(self) -> None:
        self.inbox: deque[tuple[np.ndarray, int]] = deque()

    @abstractmethod
    def send(self, data: np.ndarray, peer: int, channel: Channel, number: int = 0) -> Any:
        """Begin to send; returns the work. The data must not change until it is done."""

    @abstractmethod
    def recv(self, data: np.ndarray, peer: int, channel: Channel, number: int = 0) -> Any:
        """Begin to receive at most as many bytes as ``data`` has; returns the work."""

    @abstractmethod
    def wait(self, work: Any, peer: int, left_s: float | None = None) -> None:
        """Wait for pending work with this rank; `WireError` if it fails, after which the wire cannot be used."""

    def abandon(self, memory: object) -> None:  # noqa: B027  nothing to do where pending work keeps its memory
        """After a failure: what is pending may still read or write this memory."""

    @abstractmethod
    def cut(self) -> None:
        """Close all connections: pending work fails on both sides. Any thread may call; idempotent."""

    @abstractmethod
    def await_all(self, timeout_s: float | None) -> None:
        """Wait until all ranks are connected."""

    @abstractmethod
    def publish_failure(self, record: bytes) -> bytes | None:
        """Make this rank's error record known to all; returns that of a rank that did so earlier, None if none did."""

    @abstractmethod
    def announce_leave(self) -> None:
        """Make known that this rank closes regularly."""

    @abstractmethod
    def has_left(self, peer: int) -> bool:
        """Whether that rank has closed regularly."""

    @abstractmethod
    def listen(self, lost: Callable[[int, WireError], None]) -> None:
        """Receive the envelopes of all other ranks from now on, into `inbox`; called once.

        ``lost(peer, error)`` is called once the connection to a rank has ended, by a thread of the wire or one that
        calls `poll`.
        """

    def poll(self) -> None:  # noqa: B027  nothing to do where threads wait for them
        """Put the envelopes that have arrived into `inbox`, where `is_passive`. `WireError` if a rank has failed."""

    @abstractmethod
    def join(self, timeout_s: float) -> None:
        """After `cut`: wait for the threads of the wire."""
