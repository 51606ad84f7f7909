"""The plan of a call, and whether another library's collective may take its place.

A reduction has two algorithms, of which the one that is predicted to be faster is taken: `Cost` is exact, computed from
the layout alone and asserted against the plans; `Network.seconds` is a model of a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from shmring.dtypes import DTYPES
from shmring.nodes.plan import movement, reduction
from shmring.nodes.plan.layout import Layout, cut
from shmring.nodes.plan.steps import Plan

_ANY_ORDER = ("band", "bor", "bxor", "land", "lor")


def is_merged(op: str, dtype: int, reproducible: bool) -> bool:
    """Whether nodes may reduce the operands of their own ranks first: always where the order does not matter."""
    return not reproducible or op in _ANY_ORDER or DTYPES[dtype].family in "iub"


def keeps_bits(op: str, dtype: int, merged: bool) -> bool:
    """Whether another library's reduction may be used: the order of operands does not matter (``merged``), and the
    operation means the same there. It does not for 16-bit floats, averages, nor extremes of floats, where NaN and zeros
    of two signs are; nor for sums of integers of 8 and 16 bits, which Open MPI (5.0) does not wrap around: they stay at
    the largest number."""
    family, itemsize = DTYPES[dtype].family, DTYPES[dtype].itemsize
    if not merged:
        return False
    if family in "fc":
        return op in ("sum", "prod") and itemsize > 2
    if family == "b":
        return op in ("land", "lor")
    return op in ("min", "max", "band", "bor", "bxor") or (op in ("sum", "prod") and itemsize > 2)


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


# ---- the choice -----------------------------------------------------------------------------------------------------


class Network(NamedTuple):
    """A model of the network: seconds per message, byte into or out of one node, and byte that one rank adds."""

    latency_s: float
    per_byte_s: float
    per_added_byte_s: float = 0.025e-9

    def seconds(self, cost: Cost) -> float:
        """The time of a collective, if nothing else takes any."""
        return cost.rounds * self.latency_s + cost.busiest * self.per_byte_s + cost.added * self.per_added_byte_s


class Cost(NamedTuple):
    """``rounds``: messages one after the other. ``total``: bytes between nodes, of all. ``busiest``: bytes that the
    busiest node receives or sends. ``added``: bytes that one rank adds."""

    rounds: int
    total: int
    busiest: int
    added: int


# For the choice: of the order of ten-gigabit Ethernet and of loopback devices. Networks that are faster in both change
# little, since the ratio decides.
TYPICAL = Network(latency_s=30e-6, per_byte_s=0.8e-9)


@lru_cache(maxsize=1024)
def choose(kind: str, layout: Layout, nbytes: int, merged: bool, network: Network = TYPICAL) -> str:
    """The algorithm for a reduction of vectors of ``nbytes``."""
    return min(("gather", "direct"), key=lambda one: network.seconds(cost(kind, layout, nbytes, one, merged)))


def cost(kind: str, layout: Layout, nbytes: int, algorithm: str, merged: bool = False) -> Cost:
    """The cost of a reduction of vectors of ``nbytes``; exact where nodes divide the bytes evenly.

    The root of a ``reduce`` is taken to be on the first node, and partial results to be as long as operands.
    """
    n = len(layout)
    rows = [1 if merged else len(ranks) for ranks in layout.nodes]
    if algorithm == "gather" and kind != "reduce":
        busiest = max(sum(rows) - min(rows), (n - 1) * max(rows)) * nbytes
        return Cost(1, (n - 1) * sum(rows) * nbytes, busiest, sum(rows) * nbytes)
    rails = layout.nleaders if algorithm == "direct" else 1
    if kind == "reduce":
        return Cost(1, sum(rows[1:]) * nbytes, sum(rows[1:]) * nbytes, sum(rows) * nbytes // rails)
    if kind == "reduce_scatter":
        parts = [nbytes * len(ranks) // layout.size for ranks in layout.nodes]
    else:
        parts = cut(nbytes, n)
    into = [part * (sum(rows) - row) for part, row in zip(parts, rows, strict=True)]
    out = [(nbytes - part) * row for part, row in zip(parts, rows, strict=True)]
    added = max(parts) * sum(rows) // rails
    if kind == "reduce_scatter":
        return Cost(1, sum(into), max(into + out), added)
    into = [one + nbytes - part for one, part in zip(into, parts, strict=True)]
    out = [one + (n - 1) * part for one, part in zip(out, parts, strict=True)]
    return Cost(2, sum(into), max(into + out), added)
