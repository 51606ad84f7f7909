"""What the algorithms of reductions cost, and which one is the cheapest: computed from the layout alone.

`Cost` is exact and asserted against the plans; `seconds` is a model of a network, and a prediction.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shmring.nodes.plan.build import PIECE_NBYTES
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
    busiest node receives or sends, and where the algorithm is pipelined what the first piece adds on its way.
    ``added``: bytes that one rank adds."""

    rounds: int
    total: int
    busiest: int
    added: int


# For the choice: of the order of ten-gigabit Ethernet and of loopback devices. Networks that are faster in both change
# little, since the ratio decides.
TYPICAL = Network(latency_s=30e-6, per_byte_s=0.8e-9)

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


@lru_cache(maxsize=1024)
def choose(kind: str, layout: Layout, nbytes: int, merged: bool, network: Network = TYPICAL) -> str:
    """The algorithm for a reduction of vectors of ``nbytes``."""
    algorithms = ("gather", "direct") if merged else ("gather", "direct", "chain")
    return min(algorithms, key=lambda one: network.seconds(cost(kind, layout, nbytes, one, merged)))


def cost(kind: str, layout: Layout, nbytes: int, algorithm: str, merged: bool = False) -> Cost:
    """The cost of a reduction of vectors of ``nbytes``; exact where nodes divide the bytes evenly.

    The root of a ``reduce`` is taken to be on the first node, and partial results to be as long as operands.
    """
    n = len(layout)
    rows = [1 if merged else len(ranks) for ranks in layout.nodes]
    if algorithm == "chain":
        return _cost_of_chain(kind, layout, nbytes)
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


def _cost_of_chain(kind: str, layout: Layout, nbytes: int) -> Cost:
    n, links = len(layout), len(layout.runs) - 1
    visits = max(sum(node == one for node, _ in layout.runs) for one in range(n))
    piece = min(PIECE_NBYTES * layout.nleaders, nbytes)
    added = max(map(len, layout.nodes)) * nbytes // layout.nleaders
    ends_at = layout.runs[-1][0]
    if kind == "all_reduce":
        through = max(visits, 1) * nbytes + (nbytes if n > 2 else 0)
        return Cost(links + n - 1, (links + n - 1) * nbytes, through + (links + n - 2) * piece, added)
    if kind == "reduce":
        more = 0 if ends_at == 0 else 1
        busiest = visits * nbytes + (links + more - 1) * piece
        return Cost(links + more, (links + more) * nbytes, busiest, added)
    home = sum(len(ranks) for node, ranks in enumerate(layout.nodes) if node != ends_at)
    total = links * nbytes + nbytes * home // layout.size
    return Cost(n * links + n - 1, total, visits * nbytes + links * n * min(piece, nbytes // n), added)
