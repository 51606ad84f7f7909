"""A collective of one node's ranks, as a step of a plan over several nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmring.arrays.dtype_codec import dtype_with_code
from shmring.communicator import Communicator
from shmring.nodes.deadline import Deadline
from shmring.nodes.operand import Operand
from shmring.nodes.plan.steps import Local
from shmring.nodes.wire import AFTER_S


class LocalCall:
    """The step, ready to be called on arrays of bytes.

    Parameters
    ----------
    local : Communicator
        The ranks of the node.
    step : Local
    operand : Operand
    """

    def __init__(self, local: Communicator, step: Local, operand: Operand) -> None:
        self._call = getattr(local, step.call)
        self._after_s = AFTER_S if step.is_after else 0.0
        self._name, self.is_after = step.call, step.is_after
        self._dtype = dtype_with_code(operand.code) if step.call in ("reduce", "reduce_scatter") else None
        self._rows = 0  # into which the source is cut
        if not step.counts and step.call in ("scatter", "reduce_scatter", "all_to_all"):
            self._rows = local.size
        unit = 1 if self._dtype is not None else operand.itemsize
        options: dict[str, Any] = {}
        if self._dtype is not None:
            options["op"] = "sum" if operand.op == "avg" else operand.op
        if step.counts:
            options["counts"] = [count * unit for count in step.counts]
        if step.out_counts:
            options["out_counts"] = [count * unit for count in step.out_counts]
        if step.call in ("broadcast", "gather", "scatter", "reduce"):
            options["root"] = step.root
        self._options = options

    def __call__(self, source: np.ndarray | None, out: np.ndarray | None, deadline: Deadline) -> None:
        """Make the call."""
        options = {**self._options, "timeout": deadline.left_s(self._after_s)}
        if self._name == "barrier":
            self._call(**options)
            return
        if self._dtype is not None:
            source, out = (None if part is None else part.view(self._dtype) for part in (source, out))
        if self._name == "broadcast":
            self._call(source, **options)
            return
        if self._rows and source is not None:
            source = source.reshape(self._rows, -1)
        self._call(source, out, **options)
