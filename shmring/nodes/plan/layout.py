"""The layout of ranks on nodes, as all plans use it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property


class Layout:
    """The ranks of each node: every rank once, ascending within a node, nodes in the order of their first ranks.

    A *leader* is a rank that exchanges data with other nodes. Every node has the same number of leaders, its first
    ranks; the leaders with the same local rank form a *rail*, on which one slice of the data travels.
    """

    def __init__(self, nodes: Sequence[Sequence[int]]) -> None:
        self.nodes = tuple(tuple(ranks) for ranks in nodes)
        self.size = sum(map(len, self.nodes))
        self.nleaders = min(map(len, self.nodes))

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The node of each rank, and its local rank there."""
        found = {r: (node, local) for node, ranks in enumerate(self.nodes) for local, r in enumerate(ranks)}
        return tuple(found[r] for r in range(self.size))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All ranks, node by node."""
        return tuple(r for ranks in self.nodes for r in ranks)

    @cached_property
    def is_ordered(self) -> bool:
        """Whether the ranks are numbered node by node."""
        return self.order == tuple(range(self.size))

    @cached_property
    def runs(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Runs of consecutive ranks on one node: the node and their local ranks, in the order of all ranks."""
        found: list[tuple[int, list[int]]] = []
        for node, local in self.places:
            if not found or found[-1][0] != node:
                found.append((node, []))
            found[-1][1].append(local)
        return tuple((node, tuple(locals_)) for node, locals_ in found)


def cut(count: int, parts: int) -> list[int]:
    """``count`` elements in ``parts`` parts that differ by at most one element."""
    few, more = divmod(count, parts)
    return [few + (i < more) for i in range(parts)]
