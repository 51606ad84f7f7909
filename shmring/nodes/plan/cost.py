"""What the algorithms of reductions cost, and which one is the cheapest: computed from the layout alone.

`Cost` is exact and asserted against the plans; `seconds` is a model of a network, and a prediction.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shmring.nodes.plan.layout import Layout, cut


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
