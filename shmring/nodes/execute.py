"""Executes plans over several nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shmring.arrays.dtype_codec import dtype_with_code
from shmring.nodes.exchange import CallExchange
from shmring.nodes.flat import fold
from shmring.nodes.plan.steps import OUT, Await, Copy, Fold, Local, Plan, Recv, Send, Settle, Span, Step, X
from shmring.nodes.wire import AFTER_S

MOST_PLANS = 64
MOST_KEPT_NBYTES = 64 << 20  # of the memory of plans


class Operand(NamedTuple):
    """What is computed with: the operation, the dtype's position in `dtypes.DTYPES`, bytes of an element, and of an
    element of a partial result."""

    op: str
    code: int
    itemsize: int
    partial_itemsize: int


SEND, RECV, AWAIT, SETTLE, FOLD, COPY, LOCAL = range(7)
_KINDS = {Send: SEND, Recv: RECV, Await: AWAIT, Settle: SETTLE, Fold: FOLD, Copy: COPY, Local: LOCAL}


class Program:
    """A plan with its memory, ready to be executed: its steps name places in a list of arrays.

    Parameters
    ----------
    plan : Plan
    operand : Operand

    Attributes
    ----------
    nbytes : int
        Of the plan's own memory.
    """

    def __init__(self, plan: Plan, operand: Operand) -> None:
        self.operand = operand
        self._itemsizes = {name: operand.partial_itemsize if name in plan.partials else operand.itemsize
                           for name in (X, OUT, *plan.temps)}  # fmt: skip
        self._memory = {name: np.empty(n * self._itemsizes[name], np.uint8) for name, n in plan.temps.items()}
        self.nbytes = sum(memory.nbytes for memory in self._memory.values())
        self._views: list[np.ndarray | None] = [None]
        self._places: dict[Span, int] = {}
        self._foreign: list[tuple[int, str, int, int]] = []  # of X and OUT: place, buffer, start, stop in bytes
        self.steps = [self._step(step) for step in plan.steps]

    def _step(self, step: Step) -> tuple:
        kind, place = _KINDS[type(step)], self._place
        if isinstance(step, (Send, Recv)):
            return kind, place(step.span), step.peer, step.stream
        if isinstance(step, Await):
            return kind, step.peer, step.stream, 0
        if isinstance(step, Settle):
            return kind, step.nmessages, 0, 0
        if isinstance(step, Fold):
            return kind, place(step.out), ([place(span) for span in step.sources], place(step.before)), step.total
        if isinstance(step, Copy):
            return kind, place(step.out), place(step.source), 0
        return kind, place(step.out), place(step.source), step

    def _place(self, span: Span | None) -> int:
        """Where the array of a span is; 0 for None."""
        if span is None:
            return 0
        if span not in self._places:
            buffer, start, stop = span
            itemsize = self._itemsizes[buffer]
            self._places[span] = len(self._views)
            if buffer in self._memory:
                self._views.append(self._memory[buffer][start * itemsize : stop * itemsize])
            else:
                self._foreign.append((len(self._views), buffer, start * itemsize, stop * itemsize))
                self._views.append(None)
        return self._places[span]

    def views(self, x: np.ndarray | None, out: np.ndarray | None) -> list[Any]:
        """The arrays of all places, with these as X and OUT; None where the rank has none."""
        views = self._views.copy()
        for place, buffer, start, stop in self._foreign:
            whole = x if buffer == X else out
            assert whole is not None
            views[place] = whole if stop - start == whole.size else whole[start:stop]
        return views


class PlanCache:
    """The latest plans and their memory, which is used again by the next call: fresh pages would cost page faults."""

    def __init__(self) -> None:
        self._programs: OrderedDict[tuple, Program] = OrderedDict()
        self._nbytes = 0

    def find(self, key: tuple, build: Callable[..., Plan], operand: Operand) -> Program:
        """The program of ``build(*key)``."""
        whole = (build, key, operand.itemsize, operand.partial_itemsize, operand.op, operand.code)
        program = self._programs.get(whole)
        if program is not None:
            self._programs.move_to_end(whole)
            return program
        program = self._programs[whole] = Program(build(*key), operand)
        self._nbytes += program.nbytes
        while len(self._programs) > MOST_PLANS or (self._nbytes > MOST_KEPT_NBYTES and len(self._programs) > 1):
            self._nbytes -= self._programs.popitem(last=False)[1].nbytes
        return program


class Executor:
    """Executes one plan once.

    Parameters
    ----------
    local : Communicator
        The ranks of the node.
    exchange : CallExchange
    program : Program
    is_passive : bool
        As `shmring.nodes.wire.Wire.is_passive`.
    """

    def __init__(self, local, exchange: CallExchange, program: Program, is_passive: bool) -> None:
        self._local = local
        self._exchange = exchange
        self._operand = program.operand
        self._program = program
        self._is_passive = is_passive

    def run(self, x: np.ndarray | None, out: np.ndarray | None) -> None:
        """Execute the steps in their order."""
        exchange, operand = self._exchange, self._operand
        views = self._program.views(x, out)
        for kind, a, b, c in self._program.steps:
            if kind == SEND:
                exchange.send(views[a], b, c)
            elif kind == RECV:
                exchange.recv(views[a], b, c)
            elif kind == AWAIT:
                exchange.wait(a, b)
            elif kind == FOLD:
                fold([views[place] for place in b[0]], operand.op, operand.code, views[a], views[b[1]], c)
            elif kind == COPY:
                np.copyto(views[a], views[b])
            elif kind == LOCAL:
                if c.is_after and self._is_passive:  # what has not left would wait for this rank, which is to sleep
                    exchange.finish()
                self._call_local(c, views[b], views[a])
            else:
                exchange.settle(a)
        exchange.finish()

    def _call_local(self, step: Local, source: np.ndarray | None, out: np.ndarray | None) -> None:
        call = getattr(self._local, step.call)
        left_s = self._exchange.left_s(AFTER_S if step.is_after else 0.0)
        if step.call == "barrier":
            call(timeout=left_s)
            return
        unit = self._operand.itemsize
        options: dict = {"timeout": left_s}
        if step.call in ("reduce", "reduce_scatter"):
            unit = 1
            source, out = (None if part is None else self._typed(part) for part in (source, out))
            options["op"] = "sum" if self._operand.op == "avg" else self._operand.op
        if step.counts:
            options["counts"] = [count * unit for count in step.counts]
        if step.out_counts:
            options["out_counts"] = [count * unit for count in step.out_counts]
        if step.call in ("broadcast", "gather", "scatter", "reduce"):
            options["root"] = step.root
        if step.call == "broadcast":
            call(source, **options)
        elif step.call == "reduce" and out is None:
            call(source, None, **options)
        else:
            if not step.counts and step.call in ("scatter", "reduce_scatter", "all_to_all") and source is not None:
                source = source.reshape(self._local.size, -1)
            call(source, out, **options)

    def _typed(self, data: np.ndarray) -> np.ndarray:
        return data.view(dtype_with_code(self._operand.code))
