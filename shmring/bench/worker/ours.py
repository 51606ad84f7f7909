"""shmring itself: private arrays, shared arrays, private arrays that are shared where they lie, persistent plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import shmring

from .backend import Backend as Base
from .backend import Unsupported

if TYPE_CHECKING:  # an older shmring, which another interpreter may have, has no such module
    from shmring.shared.share import Shared

# The arguments of each collective, on rank 0 and on the others.
ARGUMENTS = {
    "all_reduce": ("x", "x"),
    "reduce": ("x", "x"),
    "broadcast": ("x", "x"),
    "all_gather": ("x, y", "x, y"),
    "gather": ("x, y", "x"),
    "reduce_scatter": ("x, y", "x, y"),
    "scatter": ("x, y", "None, y"),
    "all_to_all": ("x, y", "x, y"),
    "barrier": ("", ""),
}
CALLS: dict[str, tuple[str, str]] = {
    **{op: (f"comm.{op}({first})", f"comm.{op}({other})") for op, (first, other) in ARGUMENTS.items()},
    "ping_pong": ("comm.send(x, partner); comm.recv(y, partner)", "comm.recv(y, partner); comm.send(x, partner)"),
}
BY_RANK = {"reduce_scatter": "x", "scatter": "x", "all_gather": "y", "gather": "y", "all_to_all": "xy"}


class Backend(Base):
    """A rank of the communicator that `shmring run` or any other launcher makes."""

    calls = CALLS

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        self._kind = task["kind"]
        self.comm = shmring.init()
        self.version = f"shmring {shmring.__version__}"
        self.names = {"comm": self.comm}
        self._moved: Shared | None = None

    def empty(self, count: int, dtype: np.dtype) -> np.ndarray:
        return self.comm.empty(count, dtype) if self._kind == "shared" else super().empty(count, dtype)

    def statement(self, problem) -> str:
        op = problem.op
        if op in ("ping_pong", "barrier") and self._kind in ("shared", "share"):
            raise Unsupported(f"shared arrays make no difference to {op}")
        if self._kind == "share" and not hasattr(self.comm, "share"):
            raise Unsupported("this version has no comm.share")
        if op == "ping_pong" and self._kind == "plan":
            raise Unsupported("there are no plans of messages")
        statement = super().statement(problem)
        if self._kind == "share":
            if self._moved is not None:
                self._moved.close()
            self._moved = self.comm.share(problem.x, problem.y)
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
        if self._moved is not None:
            self._moved.close()
        self.comm.close()
