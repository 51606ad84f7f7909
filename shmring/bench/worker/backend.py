"""The base class of competitors: the statements that users of a library write for each collective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np


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

    def close(self) -> None:
        """Shut down; no call is in progress."""

    def _of_rank(self, calls: Mapping[str, str | tuple[str, str]], problem) -> str:
        if problem.op not in calls:
            raise Unsupported(f"has no {problem.op}")
        call = calls[problem.op]
        is_second = self.rank % 2 if problem.op == "ping_pong" else bool(self.rank)
        return call if isinstance(call, str) else call[is_second]
