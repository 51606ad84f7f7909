"""The group of a communicator over several nodes, and how it ends: a failure on one rank breaks it on all."""

from __future__ import annotations

import copy
import re
import time
from typing import Any

from shmring.collectives.engine.kinds import explain
from shmring.communicator import Communicator
from shmring.core.base import lifecycle
from shmring.core.base.followed import follow
from shmring.core.sync.long_waits import WaitNotes
from shmring.errors import AbortedError, BrokenError, ClosedError, MismatchError, PeerLostError, ShmringError
from shmring.nodes.collectives import Collectives
from shmring.nodes.discovery import Places
from shmring.nodes.executor import NodesExecutor

LOOK_S = 0.02  # between two looks at the other ranks, in a wait for the wire
DIED = 2  # of `rank_states`


class NodesGroup:
    """The counterpart of `Engine` for a communicator over several machines.

    Parameters
    ----------
    local : shmring.Communicator
        The ranks of this node.
    places : Places
        Where all ranks are.
    wire : MpiWire or GlooWire
        Between all ranks, used by this communicator only. It has no messages over gloo, where torch makes its own.
    name : str
    """

    has_backlog = False  # kept up to date by `progress`
    progress: Any = None  # of asynchronous work
    sharing = None  # no memory is shared by all ranks
    is_closed = False
    is_inherited = False  # in a forked child
    failure: ShmringError | None = None  # that every further call raises

    def __init__(self, local: Communicator, places: Places, wire: Any, name: str) -> None:
        self.local, self.places, self.wire, self.name, self.config = local, places, wire, name, local.config
        self.rank, self.size = places.rank, places.size
        self.family = [False] * self.size  # which ranks get open files (core/objects/open_files.py)
        self.collectives = Collectives(places, wire)
        self.executor = NodesExecutor(self, local)
        self.messages = wire.messages_of(self)
        lifecycle.track(self, lifecycle.Stage.MULTINODE)

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

    # ---- calls ----

    def check_open(self) -> None:
        """Raise if the communicator is closed or inherited."""
        if self.is_inherited:
            raise ClosedError(f"{self.name}: this communicator belongs to the parent process")
        if self.is_closed:
            raise ClosedError(f"{self.name}: this communicator is closed")

    def check_usable(self) -> None:
        """Raise if the communicator is closed, inherited or broken."""
        if self.is_closed or self.is_inherited or self.failure is not None:
            self.check_open()
            assert self.failure is not None
            raise copy.copy(self.failure)

    def await_wire(self, work: Any, deadline: float | None, awaited: object) -> Any:
        """What the wire returns of ``work`` once it is done; None if that is late.

        ``deadline`` is by `time.monotonic`; None: there is none. Raises if the group was closed, or another rank has
        failed, died, or closed before this call.
        """
        now = began = time.monotonic()
        notes = None
        while not (found := self.wire.wait(work, LOOK_S if deadline is None else min(LOOK_S, deadline - now), began)):
            self.check_usable()
            error = self._failure_of_node() or self._failure_elsewhere()
            if error is not None:
                raise error
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return None
            notes = notes or WaitNotes()
            notes.look(f"rank {self.rank} of {self.name} waits for {awaited}")
        return found

    # ---- failures ----

    def give_up(self, error: BaseException, call: str) -> None:
        """A call has raised: any failure breaks the group, and is raised as an error that names the call."""
        if isinstance(error, (ShmringError, *self.wire.errors)):
            raise self.fail(error, call) from error
        self.fail(AbortedError(f"{type(error).__name__}: {error}", self.local.rank), call)

    def fail(self, error: BaseException, call: str = "") -> ShmringError:
        """Break the group, unless it is broken already, and return the exception to raise."""
        if isinstance(error, ShmringError) and not isinstance(error, BrokenError):
            return error
        if self.failure is None:
            if not isinstance(error, ShmringError):  # of the wire, as a rank of this node has died
                error = self._failure_of_node() or error
            self.failure = self._in_group_ranks(error, call)
            if not (self.local.is_broken or self.local.closed):
                self.local.abort(str(self.failure))
            if isinstance(error, AbortedError) and error.rank != self.local.rank:
                follow(self.failure, 0)
            else:
                self.wire.alarm(str(self.failure))
        return copy.copy(self.failure)

    def _failure_of_node(self) -> ShmringError | None:
        """What ends a call as a rank of this node has failed, died, or closed before the call; or None."""
        try:
            self.local._engine.check_usable()
            states = self.local._engine.rank_states()
        except ShmringError as error:
            return error
        if DIED in states:
            return PeerLostError("a rank died", states.index(DIED))
        gone = self.executor.gone_rank()
        return None if gone < 0 else PeerLostError("a rank has closed before this call", gone)

    def _failure_elsewhere(self) -> ShmringError | None:
        """What ends a call as another rank has told of its failure; or None."""
        told = self.wire.read_alarm()
        return None if told is None else AbortedError(f"rank {told[0]} failed: {told[1]}")

    def _in_group_ranks(self, error: BaseException, call: str) -> ShmringError:
        """An error of a call, with the ranks of the whole group."""
        ours = self.places.ours
        made = (type(error) if isinstance(error, BrokenError) else BrokenError)(f"{call or self.name}: {error}")
        for name, value in vars(error).items():
            if name == "rank":
                told = re.search(r"rank (\d+) failed: ", str(error))  # which a rank of this node may have passed on
                made.rank = int(told[1]) if told else ours[value] if value >= 0 else -1  # type: ignore[attr-defined]
            elif name in ("late", "ranks"):
                setattr(made, name, tuple(ours[r] for r in value))
        return made

    def abort(self, reason: object = "") -> None:
        """Break the group on all ranks at once. Any thread may call."""
        self.check_open()
        self.fail(AbortedError(f"rank {self.rank} aborted: {reason}", self.local.rank))

    def disagree(self, about: int, signature: int, reason: str) -> None:
        """Raise a mismatch that all ranks find alike, in data that they exchanged."""
        raise self.fail(MismatchError(f"the ranks disagree in {explain(signature)}: {reason}"))

    # ---- leaving ----

    def close(self) -> None:
        """Leave; asynchronous work is done. Idempotent; peers of this node that need this rank get an error."""
        if not self.is_closed:
            self.is_closed = True
            self.local.close()
            if not self.is_inherited:
                self.wire.leave(self.failure is not None or self.executor.turn.is_taken)

    def leave_at_exit(self) -> None:
        """Leave at interpreter exit, with the reason for the peers if an exception caused it."""
        reason = lifecycle.exit_reason()
        if reason is not None and not (self.is_closed or self.is_inherited or self.is_broken):
            self.abort(reason)
        if self.progress is not None:
            self.progress.leave_at_exit()
        self.close()

    def disown(self) -> None:
        """In a forked child: do not touch the group again; a thread of the parent may have had the turn."""
        self.is_inherited = True
        self.executor.turn.renew()
        if self.messages is not None:
            self.messages.turn.renew()
