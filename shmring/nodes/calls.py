"""A call of a communicator over several nodes, with its arguments: made at once, in the background, or repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shmring.base.timeouts import timeout_ns
from shmring.collective.async_work import Work, submit
from shmring.nodes.flat import Flat
from shmring.nodes.form import Form
from shmring.nodes.lifecycle import NodesLifecycle
from shmring.nodes.operand import Operand
from shmring.nodes.repeats import Repeatable


class Arguments(NamedTuple):
    """Checked arguments: what a call needs to be made once.

    ``build(layout, rank, *key)`` makes its plan; ``form`` is for the wire's own collective, None if that will not do.
    ``offset`` is how many bytes from the start of ``out`` ``x`` may start although they overlap.
    """

    what: str
    build: Callable
    key: tuple
    operand: Operand
    form: Form | None
    x: Flat | None
    out: Flat | None
    result: Any
    offset: int = 0


class NodesCall:
    """A call with its arguments. ``opened()`` checks them and opens their memory, each time.

    ``repeat`` is the kind and the option under which `Repeats` finds the call, if it does.
    """

    def __init__(
        self,
        comm: NodesLifecycle,
        label: str,
        opened: Callable[[], Arguments],
        timeout,
        repeat: tuple[str, Any] | None = None,
    ) -> None:
        self._comm = comm
        self.label = label
        self._repeat = repeat
        self._opened = opened
        self._timeout = timeout

    def __call__(self) -> Any:
        """Make the call."""
        return self._comm._turn.run(self._make)

    def _make(self) -> Any:
        comm, call = self._comm, self._opened()
        x, out = None if call.x is None else call.x.data, None if call.out is None else call.out.data
        program = comm._programs.find(call.what, call.build, call.key, call.operand, call.form)
        comm._execute(program, x, out, self._timeout)
        if self._repeat is not None:
            comm._repeats.add(Repeatable(*self._repeat, program, call.x, call.out, call.offset))
        if call.out is not None:
            call.out.copy_back()
        return call.result


class FunctionCall:
    """A call that consists of others: made in the background in the same place of the order."""

    def __init__(self, label: str, function: Callable[[], Any]) -> None:
        self.label = label
        self._function = function

    def __call__(self) -> Any:
        """Make the calls."""
        return self._function()


class NodesPlan:
    """A call with its arguments, to be made again and again; made by `NodesCalls.plan`."""

    def __init__(self, comm: NodesCalls, call: NodesCall | FunctionCall) -> None:
        self._comm = comm
        self._call = call
        self.label = self.name = call.label

    def __call__(self) -> Any:
        """Make the call; returns what the same call without a plan returns."""
        return self._comm._dispatch(self._call, False)

    def start(self) -> Work:
        """Make the call in the background."""
        return submit(self._comm.engine, self._call)

    def describe(self) -> str:
        """The call, and the algorithm between nodes."""
        return f"{self.label} over {len(self._comm.nodes)} nodes"

    def __repr__(self) -> str:
        return f"<shmring plan of {self.label}>"


PREPARE = object()  # as ``async_op``: do not make the call, but return it as a plan

COLLECTIVES = (
    "all_reduce", "reduce", "reduce_scatter", "scan", "exscan", "broadcast", "all_gather", "gather", "scatter",
    "all_to_all", "barrier", "all_reduce_many", "broadcast_many",
)  # fmt: skip


class NodesCalls(NodesLifecycle):
    """How calls are made."""

    def plan(self, collective: str, *args, **kwargs) -> NodesPlan:
        """As `shmring.Communicator.plan`: arguments are checked now, and again at each call."""
        if collective not in COLLECTIVES:
            raise ValueError(f"{collective!r} has no plans; those that have: {', '.join(COLLECTIVES)}")
        if "async_op" in kwargs:
            raise TypeError("a plan has no async_op: its start() makes the call in the background")
        return getattr(self, collective)(*args, **kwargs, async_op=PREPARE)

    def _collective(
        self, label: str, opened: Callable[[], Arguments], timeout, async_op, repeat: tuple[str, Any] | None = None
    ) -> Any:
        if timeout is not ...:
            timeout_ns(timeout)
        call = NodesCall(self, label, opened, timeout, repeat)
        if async_op is not False:
            opened()  # so that bad arguments are an error here
        return self._dispatch(call, async_op)

    def _dispatch(self, call: NodesCall | FunctionCall, async_op) -> Any:
        if async_op is PREPARE:
            return NodesPlan(self, call)
        if async_op:
            self.check_usable()
            return submit(self.engine, call)
        if self.has_backlog:
            self.progress.drain()
        return call()
