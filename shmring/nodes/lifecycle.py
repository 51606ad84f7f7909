"""Life cycle and error propagation of a communicator over several nodes: a failure on one rank breaks all ranks.

Within a node a failure spreads through shared memory, where the failing rank also stores its *error record*
(`shmring.nodes.records`). Between nodes, the first failing rank publishes its record on the wire and then closes its
connections. Its peers detect the close, read the record, raise the error, and close their own connections.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmring.base import lifecycle
from shmring.base.arguments import checked_rank
from shmring.communicator import Communicator
from shmring.config import Config
from shmring.errors import (
    AbortedError,
    BrokenError,
    ClosedError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    ShmringError,
)
from shmring.nodes.deadline import UNLIMITED, Deadline
from shmring.nodes.exchange import Exchange
from shmring.nodes.messages import NodesMessages
from shmring.nodes.plan.layout import Layout
from shmring.nodes.program import Program
from shmring.nodes.programs import Programs
from shmring.nodes.records import RECORD_NBYTES, pack_error, unpack_error
from shmring.nodes.repeats import Repeats
from shmring.nodes.wire import Wire, WireError
from shmring.sync.turn import Turn

LAST_MESSAGE_S = 1.0  # how long a leaving rank waits for the threads of the wire
DIED = 2  # of `rank_states`


class NodesLifecycle:
    """State that all calls of `shmring.nodes.communicator.NodesCommunicator` share.

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
    """

    has_backlog = False  # kept up to date by `progress`
    progress: Any = None  # of asynchronous work
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
        self._timeout_s = local.config.timeout
        self._is_alone = local.size == 1
        wire.await_all(self._timeout_s)  # a rank that left earlier would break the connections of the others
        self._ncalls = 0
        self._turn = Turn(self.name)
        self.object_turn = Turn(self.name)
        self._repeats = Repeats()
        self._programs = Programs(self.layout, self.rank, local, Exchange(wire))
        self._failure: ShmringError | None = None
        own_record = local.zeros(RECORD_NBYTES, np.uint8)
        self._records = [local.shared_view(own_record, local_rank) for local_rank in range(local.size)]
        self.messages = NodesMessages(self, wire)
        lifecycle.track(self, lifecycle.Stage.MULTINODE)

    def adopt_progress(self, made: Any) -> Any:
        """The progress object of this communicator: ``made``, unless there is one already."""
        return vars(self).setdefault("progress", made)  # one step: a signal handler may submit work, too

    @property
    def engine(self) -> NodesLifecycle:
        """What asynchronous work is submitted to: this object."""
        return self

    @property
    def config(self) -> Config:
        """The settings of the node's communicator."""
        return self.local.config

    @property
    def closed(self) -> bool:
        """Whether `close` was called here."""
        return self.is_closed

    @property
    def is_broken(self) -> bool:
        """Whether a call has failed; then every call raises."""
        return self._failure is not None or self.local.is_broken

    @property
    def rounds(self) -> int:
        """The calls so far."""
        return self._ncalls

    def stats(self) -> dict[str, Any]:
        """The calls so far as ``rounds``, those that the wire can make as ``wire_calls``, the node's as ``local``."""
        return {"rounds": self._ncalls, "wire_calls": self._programs.stats(), "local": self.local.stats()}

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else " broken" if self.is_broken else ""
        return f"<shmring.{type(self).__name__} {self.name!r} rank {self.rank} of {self.size} on {self.nodes}{state}>"

    # ---- a call ----

    def _execute(self, program: Program, x: np.ndarray | None, out: np.ndarray | None, timeout) -> None:
        """One collective, in the turn. Any failure breaks the group."""
        if self.is_closed or self.is_inherited or self._failure is not None:
            self.check_usable()
        self._ncalls += 1
        try:
            timeout_s = self._timeout_s if timeout is ... else timeout
            if not self._is_alone:  # so that the node's ranks compare the whole call
                self.local.engine.remember(program.digest ^ self._ncalls << 32)
            program.run(self._ncalls, x, out, UNLIMITED if timeout_s is None else Deadline(timeout_s))
        except (ShmringError, WireError) as error:
            raise self._break(error, f"call {self._ncalls}: {program.what}") from error
        except BaseException as error:
            self._break(AbortedError(f"{type(error).__name__} in call {self._ncalls}: {program.what}", self.local_rank))
            raise

    def _checked_rank(self, number: Any, name: str) -> int:
        """``number``, the argument ``name``, as a rank; raises if it is none."""
        return checked_rank(number, self.size, name)

    def check_usable(self) -> None:
        """Raise if the communicator is closed, inherited or broken."""
        if self.is_closed:
            raise ClosedError(f"{self.name}: this communicator is closed")
        if self.is_inherited:
            raise ClosedError(f"{self.name}: this communicator belongs to the parent process")
        if self._failure is not None:
            raise copy.copy(self._failure)

    def check_node(self) -> None:
        """Raise if a rank of this node has died."""
        states = self.local.engine.rank_states()
        for local_rank in range(self.local.size):
            if states[local_rank] == DIED:
                raise self._break(PeerLostError(f"rank {local_rank} died", local_rank))

    # ---- failures ----

    def _break(self, error: ShmringError | WireError, call: str = "") -> ShmringError:
        """Break the group, unless it is broken already, and return the exception to raise."""
        if isinstance(error, ShmringError) and not isinstance(error, BrokenError):
            return error
        if self._failure is None:
            own = error.error if isinstance(error, WireError) else self._in_group_ranks(error, call)
            self._failure = self._local_record(error) or self._published(own)
            record = np.frombuffer(pack_error(self._failure), np.uint8)
            self._records[self.local_rank][: len(record)] = record
            self.wire.cut()
            if not (self.local.is_broken or self.local.closed):
                self.local.abort(str(self._failure))
        return copy.copy(self._failure)

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
        self._break(WireError(AbortedError(f"{self.name}: rank {self.rank} aborted: {reason}", self.rank)))

    def close(self) -> None:
        """Leave once asynchronous work is done. Idempotent; peers that still need this rank get `PeerLostError`."""
        if self.is_closed:
            return
        if self.progress is not None:
            self.progress.close(self._timeout_s)
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
        self.is_inherited = True
        for turn in (self._turn, self.object_turn, self.messages):
            turn.renew()

    def _leave(self) -> None:
        self.is_closed = True
        if not self.is_inherited:
            self.messages.announce_leave()
            self.wire.announce_leave()
            self.wire.cut()
        self.local.close()
        if not self.is_inherited:
            self.wire.join(LAST_MESSAGE_S)  # at interpreter exit a thread inside an engine may end the process
