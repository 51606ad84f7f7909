"""shmring itself: private arrays, shared arrays, private arrays that are shared where they lie, persistent plans."""

from __future__ import annotations

from contextlib import ExitStack
from typing import ClassVar

import numpy as np

import shmring

from .backend import Backend as Base
from .backend import Unsupported

# The arguments of each collective, on rank 0 and on the others.
ARGUMENTS = {
    **dict.fromkeys(("all_reduce", "reduce", "broadcast"), ("x", "x")),
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), ("x, y", "x, y")),
    "gather": ("x, y", "x"),
    "scatter": ("x, y", "None, y"),
    "barrier": ("", ""),
}
BY_RANK = {"reduce_scatter": "x", "scatter": "x", "all_gather": "y", "gather": "y", "all_to_all": "xy"}
# The calls of which a kind has no form.
WITHOUT = {"shared": ("ping_pong", "barrier"), "share": ("ping_pong", "barrier"), "plan": ("ping_pong",)}


class Backend(Base):
    """A rank of the communicator that `shmring run` or any other launcher makes."""

    calls: ClassVar = {
        **{op: (f"comm.{op}({first})", f"comm.{op}({other})") for op, (first, other) in ARGUMENTS.items()},
        "ping_pong": ("comm.send(x, partner); comm.recv(y, partner)", "comm.recv(y, partner); comm.send(x, partner)"),
    }

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        self._kind = task["kind"]
        self.comm = shmring.init()
        self.version = f"shmring {shmring.__version__}"
        self.names = {"comm": self.comm}
        self._shared = ExitStack()  # the arrays of the latest row

    def empty(self, count: int, dtype: np.dtype) -> np.ndarray:
        return self.comm.empty(count, dtype) if self._kind == "shared" else super().empty(count, dtype)

    def statement(self, problem) -> str:
        op = problem.op
        if op in WITHOUT.get(self._kind, ()):
            raise Unsupported(f"has no {op} of its own")
        if self._kind == "share" and not hasattr(self.comm, "share"):
            raise Unsupported("this version has no comm.share")
        statement = super().statement(problem)
        if self._kind == "share":
            self._shared.close()
            self._shared.enter_context(self.comm.share(problem.x, problem.y))
        for name in BY_RANK.get(op, ""):  # arrays with data of all ranks have one row per rank
            self.names[name] = self.names[name].reshape(self.size, -1)
        if problem.number.name == "bfloat16":
            import ml_dtypes

            for name in "xy":
                self.names[name] = self.names[name].view(ml_dtypes.bfloat16)
        if self._kind != "plan":
            return statement
        arguments = ARGUMENTS[op][bool(self.rank)].split(", ")
        self.names["plan"] = self.comm.plan(op, *(self.names.get(name) for name in arguments if name))
        return "plan()"

    def close(self) -> None:
        self._shared.close()
        self.comm.close()
