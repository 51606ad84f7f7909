"""The locality hierarchy of the ranks: domains (a cache, a NUMA node, a package) at one level or several.

A *domain* is a set of ranks that share a cache or a memory; *links* connect domains. Hierarchical plans send as few
bytes as possible over links (`hierarchical`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

Level = tuple[int, ...]


class Route(NamedTuple):
    """How data reaches a domain: from the domain ``parent``, over ``hops`` links from where it starts."""

    parent: int
    hops: int


class Hierarchy:
    """Ranks divided into domains; every domain is inside one domain of the next level.

    Parameters
    ----------
    levels : sequence of sequence of int
        Finest first; each level has the domain number of every rank. Ranks that share a domain share the domains of all
        coarser levels.
    """

    def __init__(self, levels: Sequence[Sequence[int]]) -> None:
        self.levels: tuple[Level, ...] = tuple(tuple(level) for level in levels)
        if not self.levels or len({len(level) for level in self.levels}) > 1:
            raise ValueError(f"levels {levels!r}: at least one, and a number for each rank in every one")
        for inner, outer in zip(self.levels, self.levels[1:], strict=False):
            if len(set(zip(inner, outer, strict=True))) > len(set(inner)):
                raise ValueError(f"domains {inner!r} are not inside domains {outer!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hierarchy) and self.levels == other.levels

    def __hash__(self) -> int:
        return hash(self.levels)

    def __repr__(self) -> str:
        return f"Hierarchy({self.levels!r})"

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.levels[0])

    @cached_property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each domain of the finest level; domains are ordered by their first rank."""
        numbers = dict.fromkeys(self.levels[0])
        return tuple(tuple(r for r, n in enumerate(self.levels[0]) if n == number) for number in numbers)

    @cached_property
    def domain_of(self) -> tuple[int, ...]:
        """The domain of every rank, as an index into `domains`."""
        numbers = {number: d for d, number in enumerate(dict.fromkeys(self.levels[0]))}
        return tuple(numbers[number] for number in self.levels[0])

    @cached_property
    def place_of(self) -> tuple[int, ...]:
        """The index of every rank among the ranks of its domain."""
        places = {r: place for ranks in self.domains for place, r in enumerate(ranks)}
        return tuple(places[r] for r in range(self.size))

    @cached_property
    def runs(self) -> tuple[tuple[int, ...], ...]:
        """Maximal runs of consecutive ranks of one domain, in rank order: the path of a fold through the domains."""
        found: list[list[int]] = []
        for r, d in enumerate(self.domain_of):
            if found and self.domain_of[found[-1][-1]] == d:
                found[-1].append(r)
            else:
                found.append([r])
        return tuple(map(tuple, found))

    def routes(self, start: int) -> tuple[Route, ...]:
        """How data from domain ``start`` reaches every domain: at each level one domain fetches it for the others.

        So every byte crosses the links between the q domains of a level q - 1 times.
        """
        paths = [tuple(level[ranks[0]] for level in reversed(self.levels)) for ranks in self.domains]

        def entry(prefix: tuple[int, ...]) -> int:
            """The domain through which the data enters the larger domain with this path."""
            inside = [d for d, path in enumerate(paths) if path[: len(prefix)] == prefix]
            return start if start in inside else inside[0]

        found = [Route(start, 0)] * len(paths)
        for d, path in sorted(enumerate(paths), key=lambda item: (len(self._own(entry, *item)), item)):
            if d != start:
                parent = entry(self._own(entry, d, path)[:-1])
                found[d] = Route(parent, found[parent].hops + 1)
        return tuple(found)

    @staticmethod
    def _own(entry: Callable[[tuple[int, ...]], int], d: int, path: tuple[int, ...]) -> tuple[int, ...]:
        """The path of the largest domain that the data enters through ``d``."""
        return next(path[:k] for k in range(len(path) + 1) if entry(path[:k]) == d)
