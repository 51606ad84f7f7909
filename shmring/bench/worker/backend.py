"""The base class of competitors: the statements that users of a library write for each collective."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

DEATH_S = 2.0  # how long a call may take to raise after another rank has been killed
CALLS_BEFORE_DEATH = 20


class Unsupported(Exception):
    """The competitor has no such call."""


class Backend:
    """One rank of a library. A subclass joins its peers in ``__init__`` and sets ``rank``, ``size`` and ``version``.

    ``calls`` has the statement of each collective, with arrays ``x`` and ``y`` and the variables in ``names``. Of two
    statements the first is for rank 0 and the second for the others; in ping_pong, for even and for odd ranks.
    """

    calls: ClassVar[Mapping[str, str | tuple[str, str]]] = {}
    version = ""
    calls_in_statement = 1
    call: Callable[[], object]  # makes one call; set once a statement is prepared

    def __init__(self, task: dict, barrier, rank: int) -> None:
        self.rank, self.size, self.barrier = rank, task["size"], barrier
        self.names: dict[str, Any] = {}
        self.trips: list[int] = []  # nanoseconds, of statements that time each round trip

    def empty(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Memory as users of this library allocate it."""
        return np.empty(count, dtype)

    def statement(self, problem) -> str:
        """The statement of this rank; stores its arrays in ``names``."""
        self.names.update(x=problem.x, y=problem.y, partner=problem.partner)
        if problem.op == "ping_pong" and problem.partner is None:
            return "pass"
        return self._of_rank(self.calls, problem)

    def checked(self, problem, statement: str) -> str:
        """The statement that stores its result in the arrays, to be compared; the timed one, if that does."""
        return statement

    def death(self) -> dict:
        """The last rank calls, then ends by SIGKILL; on others: microseconds from then to a call's error, and that."""
        if self.rank == self.size - 1:
            for _ in range(CALLS_BEFORE_DEATH):
                self.call()
            self.barrier.words[-1] = time.perf_counter_ns()
            os.kill(os.getpid(), signal.SIGKILL)
        error = self.error_of_death()
        if error is None:
            return {"seen": f"no error within {DEATH_S:g} s"}
        us = (time.perf_counter_ns() - self.barrier.words[-1]) / 1e3
        return {"us": us, "seen": f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")}

    def error_of_death(self) -> Exception | None:
        """Make calls for `DEATH_S`, at least one; what one of them raised."""
        until = time.monotonic() + DEATH_S
        try:
            self.call()
            while time.monotonic() < until:
                self.call()
        except Exception as error:
            return error
        return None

    def close(self) -> None:
        """Shut down; no call is in progress."""

    def _of_rank(self, calls: Mapping[str, str | tuple[str, str]], problem) -> str:
        if problem.op not in calls:
            raise Unsupported(f"has no {problem.op}")
        call = calls[problem.op]
        is_second = self.rank % 2 if problem.op == "ping_pong" else bool(self.rank)
        return call if isinstance(call, str) else call[is_second]
