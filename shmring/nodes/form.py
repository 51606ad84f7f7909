"""The form of a call that a wire may be able to make by a collective of its own."""

from __future__ import annotations

from typing import NamedTuple

from shmring.dtypes import DTYPES


class Form(NamedTuple):
    """A collective with equal blocks: kind in `shmring.engine.kinds`, root (-1: none), operation ("": it moves data),
    position of the dtype in `dtypes.DTYPES` (-1: opaque), elements of a block, and bytes of an element."""

    kind: int
    root: int
    op: str
    code: int
    nelements: int
    itemsize: int


def keeps_bits(op: str, code: int, is_merged: bool) -> bool:
    """Whether another library's reduction may be used: the order of operands does not matter (``is_merged``), and the
    operation means the same there. It does not for 16-bit floats, averages, nor extremes of floats, where NaN and zeros
    of two signs are."""
    family, itemsize = DTYPES[code].family, DTYPES[code].itemsize
    if not is_merged:
        return False
    if family in "fc":
        return op in ("sum", "prod") and itemsize > 2
    return op in ("land", "lor") if family == "b" else op in ("sum", "prod", "min", "max", "band", "bor", "bxor")
