"""The locality domains of the ranks: which of them share a cache, a NUMA node or a package.

*Links* connect domains. Hierarchical plans send as few bytes as possible over links (`hierarchical`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property


class Hierarchy:
    """Ranks divided into domains.

    Parameters
    ----------
    level : sequence of int
        The domain number of every rank.
    """

    def __init__(self, level: Sequence[int]) -> None:
        self.level = tuple(level)
        if not self.level:
            raise ValueError("no ranks: a hierarchy needs the domain number of every rank")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hierarchy) and self.level == other.level

    def __hash__(self) -> int:
        return hash(self.level)

    def __repr__(self) -> str:
        return f"Hierarchy({self.level!r})"

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.level)

    @cached_property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each domain; domains are ordered by their first rank."""
        numbers = dict.fromkeys(self.level)
        return tuple(tuple(r for r, n in enumerate(self.level) if n == number) for number in numbers)

    @cached_property
    def domain_of(self) -> tuple[int, ...]:
        """The domain of every rank, as an index into `domains`."""
        numbers = {number: d for d, number in enumerate(dict.fromkeys(self.level))}
        return tuple(numbers[number] for number in self.level)

    @cached_property
    def index_of(self) -> tuple[int, ...]:
        """The index of every rank among the ranks of its domain."""
        indices = {r: i for ranks in self.domains for i, r in enumerate(ranks)}
        return tuple(indices[r] for r in range(self.size))

    @property
    def most(self) -> int:
        """Ranks of the largest domain."""
        return max(map(len, self.domains))

    @property
    def least(self) -> int:
        """Ranks of the smallest domain."""
        return min(map(len, self.domains))

    @property
    def is_in_rank_order(self) -> bool:
        """Whether the ranks of every domain are consecutive, so that a fold in rank order enters each domain once."""
        return self.domain_of == tuple(sorted(self.domain_of))
