"""The group of a communicator over several nodes, and how it ends: a failure on one rank breaks all ranks.

Within a node a failure spreads through shared memory, where the failing rank also stores its *error record*
(`pack_error`). Between nodes, the first failing rank publishes its record on the wire and then closes its
connections. Its peers detect the close, read the record, raise the error, and close their own connections.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmring.base import lifecycle
from shmring.communicator import Communicator
from shmring.config import Config
from shmring.engine.kinds import explain
from shmring.errors import (
    AbortedError,
    BrokenError,
    ClosedError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    ShmringError,
)
from shmring.launch.init import init
from shmring.nodes.executor import NodesExecutor
from shmring.nodes.messages import NodesMessages
from shmring.nodes.plan.layout import Layout
from shmring.nodes.wire import Wire, WireError

LAST_MESSAGE_S = 1.0  # how long a leaving rank waits for the threads of the wire
DIED = 2  # of `rank_states`
RECORD_NBYTES = 4096
_HEAD = struct.Struct("<BBH")  # kind, number of numbers, bytes of the text
_MOST_NUMBERS = 64
_KINDS = (AbortedError, PeerLostError, CollectiveTimeoutError, MismatchError)


class NodesGroup:
    """The counterpart of `Engine` for a communicator over several machines.

    Parameters
    ----------
    local : shmring.Communicator
        The ranks of this node.
    nodes : list of list of int
        The ranks of each node, in order.
    wire : Wire
        Between the nodes, used by this communicator only.
    reproducible : bool
        Whether sums have the bits of one machine; else each node may add its own ranks first.

    Attributes
    ----------
    executor : NodesExecutor
        Makes the collectives.
    messages : NodesMessages
    failure : ShmringError or None
        The error that every further call raises.
    """

    has_backlog = False  # kept up to date by `progress`
    progress: Any = None  # of asynchronous work
    sharing = None  # no memory is shared by all ranks
    is_closed = False
    is_inherited = False  # in a forked child

    def __init__(
        self, local: Communicator, nodes: Sequence[Sequence[int]], wire: Wire, reproducible: bool = True
    ) -> None:
        self.rank, self.size, self.name = wire.rank, wire.size, wire.name
        self.layout = Layout(nodes)
        self.nodes = [list(ranks) for ranks in nodes]
        self.local = local
        self.wire = wire
        wire.look_at_node = self.check_node
        self.reproducible = reproducible
        self.node, self.local_rank = self.layout.places[self.rank]
        self.config: Config = local.config
        wire.await_all(self.config.timeout)  # a rank that left earlier would break the connections of the others
        self.executor = NodesExecutor(self, local.executor, reproducible)
        self.failure: ShmringError | None = None
        own_record = local.zeros(RECORD_NBYTES, np.uint8)
        self._records = [local.shared_view(own_record, local_rank) for local_rank in range(local.size)]
        self.messages = NodesMessages(self, wire)
        lifecycle.track(self, lifecycle.Stage.MULTINODE)

    @classmethod
    def over(
        cls,
        local: Communicator,
        nodes: Sequence[Sequence[int]],
        connect: Callable[[], Wire],
        reproducible: bool = True,
    ) -> NodesGroup:
        """The group on the wire that ``connect()`` makes. If that fails, the ranks of the node raise, too."""
        try:
            return cls(local, nodes, connect(), reproducible)
        except BaseException:
            local.abort("this rank could not be connected to other nodes")
            local.close()
            raise

    def adopt_progress(self, made: Any) -> Any:
        """The progress object of this communicator: ``made``, unless there is one already."""
        return vars(self).setdefault("progress", made)  # one step: a signal handler may submit work, too

    @property
    def is_broken(self) -> bool:
        """Whether a call has failed; then every call raises."""
        return self.failure is not None or self.local.is_broken

    @property
    def rounds(self) -> int:
        """The calls so far."""
        return self.executor.ncalls

    def stats(self) -> dict[str, Any]:
        """The calls so far as ``rounds``, those that the wire can make as ``wire_calls``, the node's as ``local``."""
        return {"rounds": self.rounds, "wire_calls": self.executor.stats(), "local": self.local.stats()}

    # ---- for calls ----

    def check_usable(self) -> None:
        """Raise if the communicator is closed, inherited or broken."""
        if self.is_closed:
            raise ClosedError(f"{self.name}: this communicator is closed")
        if self.is_inherited:
            raise ClosedError(f"{self.name}: this communicator belongs to the parent process")
        if self.failure is not None:
            raise copy.copy(self.failure)

    def check_node(self) -> None:
        """Raise if a rank of this node has died."""
        states = self.local.engine.rank_states()
        for local_rank in range(self.local.size):
            if states[local_rank] == DIED:
                raise self.fail(PeerLostError(f"rank {local_rank} died", local_rank))

    # ---- failures ----

    def fail(self, error: ShmringError | WireError, call: str = "") -> ShmringError:
        """Break the group, unless it is broken already, and return the exception to raise."""
        if isinstance(error, ShmringError) and not isinstance(error, BrokenError):
            return error
        if self.failure is None:
            own = error.error if isinstance(error, WireError) else self._in_group_ranks(error, call)
            self.failure = self._local_record(error) or self._published(own)
            self.executor.is_stopped = True
            record = np.frombuffer(pack_error(self.failure), np.uint8)
            self._records[self.local_rank][: len(record)] = record
            self.wire.cut()
            if not (self.local.is_broken or self.local.closed):
                self.local.abort(str(self.failure))
        return copy.copy(self.failure)

    def _local_record(self, error: Exception) -> ShmringError | None:
        """The record of the rank that aborted this node's communicator; the store may be unreachable."""
        if not isinstance(error, AbortedError) or not self._records[error.rank].any():
            return None
        return unpack_error(self._records[error.rank].tobytes())

    def _published(self, error: ShmringError) -> ShmringError:
        """Publish this error's record; returns the error of the first rank that did so."""
        record = self.wire.publish_failure(pack_error(error))
        return error if record is None else unpack_error(record)

    def _in_group_ranks(self, error: ShmringError, call: str = "") -> ShmringError:
        """An error of the node's communicator, with the ranks of the whole group."""
        ours = self.nodes[self.node]
        within = f" in {call}" if call else ""
        text = f"{self.name}, node {self.node} (its local ranks 0, 1, ... are ranks {list(ours)}){within}: {error}"
        if isinstance(error, PeerLostError):
            return PeerLostError(text, ours[error.rank], error.pid)
        if isinstance(error, CollectiveTimeoutError):
            return CollectiveTimeoutError(text, tuple(ours[r] for r in error.late))
        if isinstance(error, MismatchError):
            return MismatchError(text, tuple(ours[r] for r in error.ranks))
        if isinstance(error, AbortedError):
            return AbortedError(text, ours[error.rank])
        return error

    # ---- leaving ----

    def abort(self, reason: object = "") -> None:
        """Break the group on all ranks at once. Any thread may call."""
        self.fail(WireError(AbortedError(f"{self.name}: rank {self.rank} aborted: {reason}", self.rank)))

    def disagree(self, about: int, signature: int, reason: str) -> None:
        """Raise a mismatch that all ranks find alike, in data that they exchanged."""
        text = f"{self.name}: the ranks disagree in {explain(signature)}: {reason}"
        raise self.fail(WireError(MismatchError(text, (about,))))

    def close(self) -> None:
        """Leave once asynchronous work is done. Idempotent; peers that still need this rank get `PeerLostError`."""
        if self.is_closed:
            return
        if self.progress is not None:
            self.progress.close(self.config.timeout)
        self._leave()
        if self.progress is not None:
            self.progress.retire()

    def leave_at_exit(self) -> None:
        """Leave at interpreter exit, with the reason for the peers if an exception caused it."""
        if self.is_closed:
            return
        reason = lifecycle.exit_reason()
        if reason is not None and not (self.is_inherited or self.is_broken):
            self.abort(reason)
        if self.progress is not None:
            self.progress.leave_at_exit()
        self._leave()

    def disown(self) -> None:
        """In a forked child: do not touch the group again; a thread of the parent may have had the turn."""
        self.is_inherited = self.executor.is_stopped = True
        self.executor.turn.renew()
        self.messages.turn.renew()

    def _leave(self) -> None:
        self.is_closed = self.executor.is_stopped = True
        if not self.is_inherited:
            self.messages.announce_leave()
            self.wire.announce_leave()
            self.wire.cut()
        self.local.close()
        if not self.is_inherited:
            self.wire.join(LAST_MESSAGE_S)  # at interpreter exit a thread inside an engine may end the process


def join_node(
    nodes: Sequence[Sequence[int]], rank: int, session: str, rendezvous_timeout: float | None, settings: dict[str, Any]
) -> Communicator:
    """The communicator of this rank's node, where ``nodes`` are the ranks of each; all ranks of the node call."""
    node = next(i for i, ranks in enumerate(nodes) if rank in ranks)
    return init(
        rank=nodes[node].index(rank), size=len(nodes[node]), session=f"{session}.{node}",
        rendezvous_timeout=rendezvous_timeout, **settings,
    )  # fmt: skip


# ---- error records: numbers and a text, so that nothing is unpickled ----


def pack_error(error: ShmringError) -> bytes:
    """A record of an error, of at most `RECORD_NBYTES` bytes. Errors of other kinds become an `AbortedError`."""
    kind = next((i for i, one in enumerate(_KINDS) if isinstance(error, one)), 0)
    numbers: tuple[int, ...] = (-1,)
    if isinstance(error, PeerLostError):
        numbers = (error.rank, error.pid)
    elif isinstance(error, CollectiveTimeoutError):
        numbers = error.late[:_MOST_NUMBERS]
    elif isinstance(error, MismatchError):
        numbers = error.ranks[:_MOST_NUMBERS]
    elif isinstance(error, AbortedError):
        numbers = (error.rank,)
    text = str(error).encode()[: RECORD_NBYTES - _HEAD.size - 8 * len(numbers)]
    return _HEAD.pack(kind, len(numbers), len(text)) + struct.pack(f"<{len(numbers)}q", *numbers) + text


def unpack_error(record: bytes) -> ShmringError:
    """The error of a record."""
    try:
        kind, n, length = _HEAD.unpack_from(record)
        numbers = struct.unpack_from(f"<{n}q", record, _HEAD.size)
        start = _HEAD.size + 8 * n
        text = record[start : start + length].decode("utf-8", "replace")
        known: type = _KINDS[kind]
        return known(text, numbers) if known in (CollectiveTimeoutError, MismatchError) else known(text, *numbers)
    except (struct.error, IndexError, TypeError):
        return AbortedError("a rank failed, and its error record is malformed")
