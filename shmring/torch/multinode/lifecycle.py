"""The life of a communicator of several nodes: calls take turns, and trouble on one rank is everybody's.

Within a node trouble spreads by shared memory, and its *word*, the error itself, lies in shared memory, too. Between
nodes the word is laid down in the store by which the ranks met; whoever meets trouble first lays down his and then ends
his connections, which those at their other ends notice at once. They look the word up, raise it, and end what they
have.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import shmring
from shmring.config import Config
from shmring.engine import lifecycle
from shmring.errors import (
    AbortedError,
    BrokenError,
    ClosedError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    ShmringError,
)
from shmring.torch.multinode.transport import GRACE_S, Conversation, Deadline, TroubleError, Wire

AFTER_S = 2 * GRACE_S  # and who waits for one of its own node that waits for another node
STORE_S = 1.0  # how long to wait for the store when there is trouble
WORD_NBYTES = 4096


class NodeLife:
    """What all calls of `shmring.torch.multinode.communicator.NodesCommunicator` stand on.

    Parameters
    ----------
    local : shmring.Communicator
        Of this rank's node.
    nodes : list of list of int
        The ranks of each node, in order.
    rank : int
    session : str
        Names the group.
    store : torch.distributed.Store
        This group's own.
    timeout_s : float or None
        Of calls that are given none.
    """

    has_backlog = False  # kept by `progress`
    is_closed = False
    is_inherited = False  # through fork

    def __init__(
        self, local: shmring.Communicator, nodes: Sequence[Sequence[int]], rank: int, session: str, store,
        timeout_s: float | None,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.size = sum(map(len, nodes))
        self.name = session
        self.nodes = nodes
        self.local = local
        self.node = next(i for i, ranks in enumerate(nodes) if rank in ranks)
        self.seat = local.rank
        self.progress: Any = None  # of asynchronous work
        self.wire = Wire(session, dist.PrefixStore("wire", store), rank, self.size, _connecting(timeout_s))
        self._store = store
        self._await_all(_connecting(timeout_s))
        self._timeout_s = timeout_s
        self._ncalls = 0
        self._turn = threading.RLock()
        self._trouble: ShmringError | None = None
        own_word = local.zeros(WORD_NBYTES, np.uint8)
        self._words = [local.shared_view(own_word, seat) for seat in range(local.size)]
        lifecycle.track(self, lifecycle.Stage.MULTINODE)

    def place(self, rank: int) -> tuple[int, int]:
        """The node of a rank, and its number there."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{rank} is not a rank, from 0 to {self.size - 1}")
        return next((i, list(ranks).index(rank)) for i, ranks in enumerate(self.nodes) if rank in ranks)

    @property
    def engine(self) -> NodeLife:
        """What asynchronous work is submitted to: the same."""
        return self

    @property
    def config(self) -> Config:
        """The settings of the node's communicator."""
        return self.local.config

    def _await_all(self, patience: timedelta) -> None:
        """Wait until all have their connections: a rank that left before would take away those of the others."""
        if self._store.add("connected", 1) == self.size:
            self._store.set("complete", b"")
        self._store.wait(["complete"], patience)

    @property
    def is_broken(self) -> bool:
        """Whether there was trouble; then every call raises."""
        return self._trouble is not None or self.local.is_broken

    @property
    def rounds(self) -> int:
        """The calls so far."""
        return self._ncalls

    def stats(self) -> dict[str, Any]:
        """The calls so far, as ``rounds``, and the node's own figures as ``local``."""
        return {"rounds": self._ncalls, "local": self.local.stats()}

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else " broken" if self.is_broken else ""
        return f"<shmring.{type(self).__name__} {self.name!r} rank {self.rank} of {self.size} on {self.nodes}{state}>"

    # ---- a call ----

    @contextlib.contextmanager
    def _call(self, kind: str, timeout, x=None, op: str = "", root: int = -1, count: int = 0) -> Iterator[Conversation]:
        """One collective: its turn, and its conversation between nodes; whatever goes wrong in it breaks the group."""
        if self.has_backlog:
            self.progress.drain()
        with self._turn:
            self.assure()
            self._ncalls += 1
            what = [op, f"{x.dtype} x {count}" if x is not None else "", f"root {root}" if root >= 0 else ""]
            words = f"call {self._ncalls}: {kind}({', '.join(filter(None, what))})"
            deadline = Deadline(self._timeout_s if timeout is ... else timeout)
            try:
                # Torch's own arithmetic and copies, of which autograd is to see as little as of the core's.
                with torch.inference_mode():
                    conversation = Conversation(self.wire, words, deadline)
                    yield conversation
                    conversation.settle()
            except (ShmringError, TroubleError) as error:
                raise self._broken_by(error) from error
            except BaseException as error:
                self._broken_by(AbortedError(f"{type(error).__name__} in {words}", self.seat))
                raise

    def assure(self) -> None:
        """Raise what a call would raise here and now."""
        if self.is_closed:
            raise ClosedError(f"{self.name}: is closed")
        if self.is_inherited:
            raise ClosedError(f"{self.name}: belongs to the parent process")
        if self._trouble is not None:
            raise copy.copy(self._trouble)

    # ---- trouble ----

    def _broken_by(self, error: ShmringError | TroubleError) -> ShmringError:
        """Break the group, unless it is, and return what to raise for this error."""
        if isinstance(error, ShmringError) and not isinstance(error, BrokenError):
            return error
        if self._trouble is None:
            own = error.error if isinstance(error, TroubleError) else self._in_ranks_of_all(error)
            self._trouble = self._told_on_node(error) or self._lay_down(own)
            word = pickle.dumps(self._trouble)
            if len(word) <= WORD_NBYTES:
                self._words[self.seat][: len(word)] = np.frombuffer(word, np.uint8)
            self.wire.cut()
            if not (self.local.is_broken or self.local.is_closed):
                self.local.abort(str(self._trouble))
            self._give_up(self._trouble)
        return copy.copy(self._trouble)

    def _give_up(self, trouble: ShmringError) -> None:
        """Fail what is under way besides calls."""

    def _told_on_node(self, error: Exception) -> ShmringError | None:
        """The word of the rank that aborted this node's communicator: the store may be out of reach, or gone."""
        if not isinstance(error, AbortedError) or not self._words[error.rank].any():
            return None
        return pickle.loads(self._words[error.rank].tobytes())

    def _lay_down(self, error: ShmringError) -> ShmringError:
        """Lay down the word of this trouble, and return the one that lies there: it may have been somebody else's."""
        said = self._ask_store(lambda: self._store.compare_set("word", "", pickle.dumps(error).hex()))
        return error if said is None else pickle.loads(bytes.fromhex(said.decode()))

    def _in_ranks_of_all(self, error: ShmringError) -> ShmringError:
        """An error of the node's communicator, told in the ranks of the whole group."""
        ours = self.nodes[self.node]
        text = f"{self.name}, node {self.node} (its ranks 0, 1, ... are {list(ours)} of all): {error}"
        if isinstance(error, PeerLostError):
            return PeerLostError(text, ours[error.rank], error.pid)
        if isinstance(error, CollectiveTimeoutError):
            return CollectiveTimeoutError(text, tuple(ours[r] for r in error.late))
        if isinstance(error, MismatchError):
            return MismatchError(text, tuple(ours[r] for r in error.ranks))
        if isinstance(error, AbortedError):
            return AbortedError(text, ours[error.rank])
        return error

    # ---- the end ----

    def abort(self, reason: object = "") -> None:
        """End the group on all ranks at once. Any thread may call."""
        self._broken_by(TroubleError(AbortedError(f"{self.name}: rank {self.rank} aborted: {reason}", self.rank)))

    def close(self) -> None:
        """Leave, once asynchronous work is done. Idempotent; peers that still need this rank get `PeerLostError`."""
        if self.is_closed:
            return
        if self.progress is not None:
            self.progress.close(self._timeout_s)
        self._part()
        if self.progress is not None:
            self.progress.retire()

    def leave_at_exit(self) -> None:
        """At the end of the interpreter: peers hear that this rank has left, and why if an exception ended it."""
        if self.is_closed:
            return
        reason = lifecycle.exit_reason()
        if reason is not None and not (self.is_inherited or self.is_broken):
            self.abort(reason)
        if self.progress is not None:
            self.progress.leave_at_exit()
        self._part()

    def disown(self) -> None:
        """After fork, in the child: there is nothing to leave, and some thread of the parent may have had the turn."""
        self.is_inherited = True
        self._turn = threading.RLock()

    def _part(self) -> None:
        self.is_closed = True
        if not self.is_inherited:
            self._say_goodbye()
            self.wire.cut()
        self.local.close()

    def _has_left(self, rank: int) -> bool:
        """Whether a rank of another node has closed in good order."""
        return bool(self._ask_store(lambda: self._store.check([f"left/{rank}"])))

    def _say_goodbye(self) -> None:
        self._ask_store(lambda: self._store.set(f"left/{self.rank}", b""))

    def _ask_store(self, call: Callable[[], Any]) -> Any:
        """What the store answers; None if nothing: it may be gone with its keeper, or out of reach."""
        answers: list[Any] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                answers.append(call())

        # The store's own patience is that for a rendezvous, or none.
        thread = threading.Thread(target=ask, name=f"shmring {self.name} store", daemon=True)
        thread.start()
        thread.join(STORE_S)
        return answers[0] if answers else None


def _connecting(timeout_s: float | None) -> timedelta:
    return timedelta(days=1) if timeout_s is None else timedelta(seconds=timeout_s)


# A second time, as this module is imported after torch: these leave before torch's own exit handlers run.
atexit.register(lifecycle.leave, lifecycle.Stage.MULTINODE)
