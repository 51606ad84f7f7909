"""Life cycle and error propagation of a communicator of several nodes: a failure on one rank breaks all ranks.

Within a node a failure spreads through shared memory, where the failing rank also stores its *error record*, the
pickled exception. Between nodes, the first failing rank writes its record to the c10d store and then closes its
connections. Its peers detect the close, read the record, raise the error, and close their own connections.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
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
from shmring.sync.turn import Turn
from shmring.torch.multinode.transport import GRACE_S, CallExchange, Deadline, GlooTransport, TransportError

AFTER_S = 2 * GRACE_S  # for waiting on a rank of the own node that may itself wait for another node
STORE_S = 1.0  # how long to wait for an answer of the store after a failure
RECORD_NBYTES = 4096


def collective(method: Callable) -> Callable:
    """A method that one thread at a time executes, and after asynchronous work submitted before."""

    @functools.wraps(method)
    def in_turn(self, *args, **kwargs):
        if self.has_backlog:
            self.progress.drain()
        return self._turn.run(functools.partial(method, self, *args, **kwargs))

    return in_turn


class MultinodeLifecycle:
    """State that all calls of `shmring.torch.multinode.communicator.MultinodeCommunicator` share.

    Parameters
    ----------
    local : shmring.Communicator
        The ranks of this node.
    nodes : list of list of int
        The ranks of each node, in order.
    rank : int
    session : str
        Name of the group.
    store : torch.distributed.Store
        Used by this group only.
    timeout_s : float or None
        Default of calls.
    """

    has_backlog = False  # kept up to date by `progress`
    progress: Any = None  # of asynchronous work
    is_closed = False
    is_inherited = False  # in a forked child

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
        self.local_rank = local.rank
        self.transport = GlooTransport(
            session, dist.PrefixStore("transport", store), rank, self.size, _connecting(timeout_s)
        )
        self._store = store
        self._await_all(_connecting(timeout_s))
        self._timeout_s = timeout_s
        self._ncalls = 0
        self._turn = Turn(session)
        self._failure: ShmringError | None = None
        own_record = local.zeros(RECORD_NBYTES, np.uint8)
        self._records = [local.shared_view(own_record, local_rank) for local_rank in range(local.size)]
        lifecycle.track(self, lifecycle.Stage.MULTINODE)

    def adopt_progress(self, made: Any) -> Any:
        """The progress object of this communicator: ``made``, unless there is one already."""
        return vars(self).setdefault("progress", made)  # one step: a signal handler may submit work, too

    def locate(self, rank: int) -> tuple[int, int]:
        """The node of a rank, and its local rank there."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{rank} is not a rank, from 0 to {self.size - 1}")
        return next((i, list(ranks).index(rank)) for i, ranks in enumerate(self.nodes) if rank in ranks)

    @property
    def engine(self) -> MultinodeLifecycle:
        """What asynchronous work is submitted to: this object."""
        return self

    @property
    def config(self) -> Config:
        """The settings of the node's communicator."""
        return self.local.config

    def _await_all(self, patience: timedelta) -> None:
        """Wait until all ranks are connected: a rank that left earlier would break the connections of the others."""
        if self._store.add("connected", 1) == self.size:
            self._store.set("complete", b"")
        self._store.wait(["complete"], patience)

    @property
    def is_broken(self) -> bool:
        """Whether a call has failed; then every call raises."""
        return self._failure is not None or self.local.is_broken

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
    def _call(self, kind: str, timeout, x=None, op: str = "", root: int = -1, count: int = 0) -> Iterator[CallExchange]:
        """One collective, in the turn: it makes the exchange between nodes; any failure breaks the group."""
        self.check_usable()
        self._ncalls += 1
        what = [op, f"{x.dtype} x {count}" if x is not None else "", f"root {root}" if root >= 0 else ""]
        text = f"call {self._ncalls}: {kind}({', '.join(filter(None, what))})"
        deadline = Deadline(self._timeout_s if timeout is ... else timeout)
        try:
            # Autograd must not record torch's own arithmetic and copies here, as it does not record the core's.
            with torch.inference_mode():
                exchange = CallExchange(self.transport, text, deadline)
                yield exchange
                exchange.settle()
        except (ShmringError, TransportError) as error:
            raise self._break(error) from error
        except BaseException as error:
            self._break(AbortedError(f"{type(error).__name__} in {text}", self.local_rank))
            raise

    def check_usable(self) -> None:
        """Raise if the communicator is closed, inherited or broken."""
        if self.is_closed:
            raise ClosedError(f"{self.name}: this communicator is closed")
        if self.is_inherited:
            raise ClosedError(f"{self.name}: this communicator belongs to the parent process")
        if self._failure is not None:
            raise copy.copy(self._failure)

    # ---- failures ----

    def _break(self, error: ShmringError | TransportError) -> ShmringError:
        """Break the group, unless it is broken already, and return the exception to raise."""
        if isinstance(error, ShmringError) and not isinstance(error, BrokenError):
            return error
        if self._failure is None:
            own = error.error if isinstance(error, TransportError) else self._in_group_ranks(error)
            self._failure = self._local_record(error) or self._store_record(own)
            record = pickle.dumps(self._failure)
            if len(record) <= RECORD_NBYTES:
                self._records[self.local_rank][: len(record)] = np.frombuffer(record, np.uint8)
            self.transport.cut()
            if not (self.local.is_broken or self.local.is_closed):
                self.local.abort(str(self._failure))
            self._fail_requests(self._failure)
        return copy.copy(self._failure)

    def _fail_requests(self, failure: ShmringError) -> None:
        """Fail the pending message requests."""

    def _local_record(self, error: Exception) -> ShmringError | None:
        """The record of the rank that aborted this node's communicator; the store may be unreachable."""
        if not isinstance(error, AbortedError) or not self._records[error.rank].any():
            return None
        return pickle.loads(self._records[error.rank].tobytes())

    def _store_record(self, error: ShmringError) -> ShmringError:
        """Write this error's record to the store; returns the error of the first rank that did so."""
        record = self._query_store(lambda: self._store.compare_set("error", "", pickle.dumps(error).hex()))
        return error if record is None else pickle.loads(bytes.fromhex(record.decode()))

    def _in_group_ranks(self, error: ShmringError) -> ShmringError:
        """An error of the node's communicator, with the ranks of the whole group."""
        ours = self.nodes[self.node]
        text = f"{self.name}, node {self.node} (its local ranks 0, 1, ... are ranks {list(ours)}): {error}"
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
        self._break(TransportError(AbortedError(f"{self.name}: rank {self.rank} aborted: {reason}", self.rank)))

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
        self._turn.renew()

    def _leave(self) -> None:
        self.is_closed = True
        if not self.is_inherited:
            self._announce_leave()
            self.transport.cut()
        self.local.close()

    def _has_left(self, rank: int) -> bool:
        """Whether a rank of another node has closed regularly."""
        return bool(self._query_store(lambda: self._store.check([f"left/{rank}"])))

    def _announce_leave(self) -> None:
        self._query_store(lambda: self._store.set(f"left/{self.rank}", b""))

    def _query_store(self, call: Callable[[], Any]) -> Any:
        """The answer of the store; None if there is none: its host process may be gone or unreachable."""
        answers: list[Any] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                answers.append(call())

        # The store's own timeout is that of the rendezvous, or unlimited.
        thread = threading.Thread(target=ask, name=f"shmring {self.name} store", daemon=True)
        thread.start()
        thread.join(STORE_S)
        return answers[0] if answers else None


def _connecting(timeout_s: float | None) -> timedelta:
    return timedelta(days=1) if timeout_s is None else timedelta(seconds=timeout_s)


# A second time, as this module is imported after torch: these leave before torch's own exit handlers run.
atexit.register(lifecycle.leave, lifecycle.Stage.MULTINODE)
