"""Executes plans over several nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shmring.arrays.dtype_codec import dtype_with_code
from shmring.nodes.exchange import CallExchange
from shmring.nodes.flat import fold
from shmring.nodes.plan.steps import Await, Copy, Fold, Local, Plan, Recv, Send, Span
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


class PlanCache:
    """The latest plans and their memory, which is used again by the next call: fresh pages would cost page faults."""

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple, tuple[Plan, dict[str, np.ndarray], int]] = OrderedDict()
        self._nbytes = 0

    def find(self, key: tuple, build: Callable[[], Plan], operand: Operand) -> tuple[Plan, dict[str, np.ndarray]]:
        """The plan of this key and its memory."""
        key = (*key, operand.itemsize, operand.partial_itemsize)
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key][:2]
        plan = build()
        sizes = {
            name: count * (operand.partial_itemsize if name in plan.partials else operand.itemsize)
            for name, count in plan.temps.items()
        }
        memory = {name: np.empty(nbytes, np.uint8) for name, nbytes in sizes.items()}
        nbytes = sum(sizes.values())
        self._plans[key] = plan, memory, nbytes
        self._nbytes += nbytes
        while len(self._plans) > MOST_PLANS or (self._nbytes > MOST_KEPT_NBYTES and len(self._plans) > 1):
            self._nbytes -= self._plans.popitem(last=False)[1][2]
        return plan, memory


class Executor:
    """Executes one plan once.

    Parameters
    ----------
    local : Communicator
        The ranks of the node.
    exchange : CallExchange
    memory : dict
        The buffers by name, each an array of uint8, None where the rank has none.
    operand : Operand
    partials : frozenset
        The names of buffers with partial results.
    """

    def __init__(
        self, local, exchange: CallExchange, memory: dict[str, np.ndarray | None], operand: Operand, partials
    ) -> None:
        self._local = local
        self._exchange = exchange
        self._memory = memory
        self._operand = operand
        self._partials = partials

    def run(self, plan: Plan) -> None:
        """Execute the steps in their order."""
        exchange, view = self._exchange, self._view
        for step in plan.steps:
            if isinstance(step, Send):
                exchange.send(view(step.span), step.peer, step.stream)
            elif isinstance(step, Recv):
                exchange.recv(view(step.span), step.peer, step.stream)
            elif isinstance(step, Await):
                exchange.wait(step.peer, step.stream)
            elif isinstance(step, Fold):
                self._fold(step)
            elif isinstance(step, Local):
                self._call_local(step)
            elif isinstance(step, Copy):
                np.copyto(view(step.out), view(step.source))
            else:
                exchange.settle()
        exchange.finish()

    def _view(self, span: Span) -> np.ndarray:
        buffer, start, stop = span
        itemsize = self._operand.partial_itemsize if buffer in self._partials else self._operand.itemsize
        memory = self._memory[buffer]
        assert memory is not None
        return memory[start * itemsize : stop * itemsize]

    def _fold(self, step: Fold) -> None:
        out, view = self._view(step.out), self._view
        before = None if step.before is None else view(step.before)
        fold([view(span) for span in step.sources], self._operand.op, self._operand.code, out, before, step.total)

    def _call_local(self, step: Local) -> None:
        call = getattr(self._local, step.call)
        left_s = self._exchange.left_s(AFTER_S if step.is_after else 0.0)
        if step.call == "barrier":
            call(timeout=left_s)
            return
        source, out = (None if span is None else self._view(span) for span in (step.source, step.out))
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
