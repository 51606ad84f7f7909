"""Checks of arguments that calls of several rooms have in common."""

from __future__ import annotations

import operator
from typing import SupportsIndex


def checked_rank(number: SupportsIndex, size: int, name: str) -> int:
    """``number``, the argument ``name``, as one of ``size`` ranks; raises if it is none."""
    rank = operator.index(number)
    if not 0 <= rank < size:
        raise ValueError(f"{name}={rank}: must be a rank, from 0 to {size - 1}")
    return rank
