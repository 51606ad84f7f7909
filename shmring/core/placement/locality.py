"""Locality domains: which ranks share a last-level cache, a NUMA node, a package.

Each rank publishes its location (`Seat`), as the machine numbers it; all derive the same `Domains` from them. The
location is the processor on which a rank runs during the rendezvous; a rank that is not bound may move later.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from shmring.core.placement.cpus import processor_of
from shmring.core.placement.topology import Topology, caches_of, nodes_of, package_of

_FORM = struct.Struct("<qqqq")
SEAT_NBYTES = _FORM.size


class Seat(NamedTuple):
    """The location of one rank.

    Attributes
    ----------
    processor : int
    cache : int
        The lowest processor that shares its last-level cache; ``-1 - package`` where caches are unknown.
    node, package : int
        The node and package of that processor, as the kernel numbers them.
    """

    processor: int = 0
    cache: int = 0
    node: int = 0
    package: int = 0

    def pack(self) -> bytes:
        """As `SEAT_NBYTES` bytes."""
        return _FORM.pack(*self)

    @classmethod
    def unpack(cls, words: bytes) -> Seat:
        """The inverse of `pack`."""
        return cls(*_FORM.unpack(words))


class Domains(NamedTuple):
    """The domains of a group: the same on all its ranks.

    Attributes
    ----------
    caches, nodes, packages : tuple of int
        By rank, the number of its last-level cache, NUMA node and package, counted from 0 as they first appear.
    """

    caches: tuple[int, ...]
    nodes: tuple[int, ...]
    packages: tuple[int, ...]

    @classmethod
    def of(cls, seats: Sequence[Seat]) -> Domains:
        """The domains that follow from the locations of the ranks."""
        return cls(
            _numbered([(seat.package, seat.cache) for seat in seats]),
            _numbered([seat.node for seat in seats]),
            _numbered([seat.package for seat in seats]),
        )

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Nested partitions of the ranks, finest first: the number of each rank's part.

        A node may hold several caches (chiplets) or a cache several nodes (clusters of a package); the order of
        nesting is read from the ranks themselves. Partitions with one part, or with one rank in each part, are omitted,
        and so are duplicates.
        """
        inner, outer = self.caches, self.nodes
        if max(inner) < max(outer):
            inner, outer = outer, inner
        outer = _together(outer, self.packages)
        chain = (_together(inner, outer), outer, self.packages)
        found: list[tuple[int, ...]] = []
        for way in chain:
            if 0 < max(way) < len(way) - 1 and way not in found:
                found.append(way)
        return tuple(found)


def own_seat() -> Seat:
    """The location of the calling thread now."""
    return seat_at(max(0, processor_of()))


def packed_order(topology: Topology) -> tuple[int, ...]:
    """All processors, sorted by package, then node, last-level cache and core."""
    ways = (topology.packages, [node.processors for node in topology.nodes], topology.last_level_groups, topology.cores)
    places = [{number: i for i, group in enumerate(way) for number in group} for way in ways]
    return tuple(sorted(topology.processors, key=lambda number: [*(place.get(number, -1) for place in places), number]))


def seat_at(processor: int, sysfs: str = "/sys") -> Seat:
    """The location of a processor according to sysfs, also if it is outside the affinity mask."""
    root = Path(sysfs)
    package = package_of(root, processor)
    last = max(caches_of(root, processor), key=lambda cache: cache.level, default=None)
    node = next((number for number, processors, _ in nodes_of(root) if processor in processors), 0)
    return Seat(processor, min(last.processors if last else (), default=-1 - package), node, package)


def _together(way: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The common refinement of two partitions."""
    return _numbered(list(zip(way, other, strict=True)))


def _numbered(keys: Sequence[Hashable]) -> tuple[int, ...]:
    """Numbers for keys, from 0 on, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)
