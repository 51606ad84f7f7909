"""What is computed with in a call over several nodes."""

from __future__ import annotations

from typing import NamedTuple


class Operand(NamedTuple):
    """The operation, the dtype's position in `dtypes.DTYPES`, bytes of an element, and of an element of a partial
    result."""

    op: str
    code: int
    itemsize: int
    partial_itemsize: int
