"""What a competitor's module has: a class `Backend`, which knows what users of that library write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np


class Unsupported(Exception):
    """This competitor has no such call."""


class Backend:
    """One rank of a library. A subclass joins its peers in ``__init__`` and sets ``rank``, ``size`` and ``version``.

    ``calls`` has for each collective the statement that its users write, with arrays ``x`` and ``y`` and what is in
    ``names``. Two statements are for rank 0 and for the others; in ping_pong, for a pair's even rank and
    its odd one.
    """

    calls: ClassVar[Mapping[str, str | tuple[str, str]]] = {}
    version = ""
    calls_in_statement = 1

    def __init__(self, task: dict, line, rank: int) -> None:
        self.rank, self.size = rank, task["size"]
        self.names: dict[str, Any] = {}

    def empty(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Memory as this library's users have it."""
        return np.empty(count, dtype)

    def statement(self, problem) -> str:
        """The call of this rank, whose arrays are put into ``names``."""
        if problem.op not in self.calls:
            raise Unsupported(f"has no {problem.op}")
        self.names.update(x=problem.x, y=problem.y, partner=problem.partner)
        if problem.op == "ping_pong" and problem.partner is None:
            return "pass"
        call = self.calls[problem.op]
        odd_one_out = self.rank % 2 if problem.op == "ping_pong" else bool(self.rank)
        return call if isinstance(call, str) else call[odd_one_out]

    def close(self) -> None:
        """Leave; called with nothing under way."""
