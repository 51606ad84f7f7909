"""The plan of a call, and whether another library's collective may take its place."""

from __future__ import annotations

from collections.abc import Sequence

from shmring.dtypes import DTYPES
from shmring.nodes.plan import movement, reduction
from shmring.nodes.plan.cost import choose
from shmring.nodes.plan.layout import Layout
from shmring.nodes.plan.steps import Plan

_ANY_ORDER = ("band", "bor", "bxor", "land", "lor")


def is_merged(op: str, dtype: int, reproducible: bool) -> bool:
    """Whether nodes may reduce the operands of their own ranks first: always where the order does not matter."""
    return not reproducible or op in _ANY_ORDER or DTYPES[dtype].family in "iub"


def keeps_bits(op: str, dtype: int, merged: bool) -> bool:
    """Whether another library's reduction may be used: the order of operands does not matter (``merged``), and the
    operation means the same there. It does not for 16-bit floats, averages, nor extremes of floats, where NaN and zeros
    of two signs are."""
    family, itemsize = DTYPES[dtype].family, DTYPES[dtype].itemsize
    if not merged:
        return False
    if family in "fc":
        return op in ("sum", "prod") and itemsize > 2
    return op in ("land", "lor") if family == "b" else op in ("sum", "prod", "min", "max", "band", "bor", "bxor")


def plan_of(
    layout: Layout, rank: int, kind: str, root: int, merged: bool, count: int, itemsize: int,
    counts: Sequence[int] | None, in_place: bool,
) -> Plan:  # fmt: skip
    """The plan of one rank for a call of ``kind``.

    ``count`` is the elements of X, on all ranks where it has one block for each; ``counts`` are those of each rank's
    block, of an all-to-all what each sends to each, [sender * size + receiver]; None: all are equal.
    """
    n = layout.size
    if kind == "barrier":
        return movement.barrier(layout, rank)
    if kind == "broadcast":
        return movement.broadcast(layout, rank, count, itemsize, root)
    if kind in ("scan", "exscan"):
        return reduction.scan(layout, rank, count, itemsize, kind == "exscan")
    if kind == "all_to_all":
        rows = [(count // n,) * n] * n if counts is None else [counts[i * n : (i + 1) * n] for i in range(n)]
        return movement.all_to_all(layout, rank, rows, itemsize, in_place)
    if kind in ("all_gather", "gather", "scatter"):
        sizes = counts or (count // n if kind == "scatter" else count,) * n
        if kind == "all_gather":
            return movement.all_gather(layout, rank, sizes, itemsize)
        build = movement.gather if kind == "gather" else movement.scatter
        return build(layout, rank, sizes, itemsize, root)
    algorithm = choose(kind, layout, count * itemsize, merged)
    if kind == "reduce_scatter":
        return reduction.reduce_scatter(layout, rank, counts or (count // n,) * n, itemsize, algorithm, merged)
    if kind == "reduce":
        return reduction.reduce(layout, rank, count, itemsize, algorithm, root, merged)
    return reduction.all_reduce(layout, rank, count, itemsize, algorithm, merged)
