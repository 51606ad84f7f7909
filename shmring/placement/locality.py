"""Locality domains: which ranks share a last-level cache, a NUMA node, a package, and the distances of their nodes.

Each rank publishes its location (`Seat`), as the machine numbers it; all derive the same `Domains` from them. The
location is the processor on which a rank runs during the rendezvous; a rank that is not bound may move later.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from shmring.placement.cpus import processor_of
from shmring.placement.topology import Topology, caches_of, nodes_of, package_of
from shmring.placement.topology_file import ENVIRON, load

# The kernel's distance of a node to itself, and to another one where the firmware has no table.
LOCAL_DISTANCE, REMOTE_DISTANCE = 10, 20

NODES_MAX = 64
_FORM = struct.Struct(f"<qqqq{NODES_MAX}s")
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
    distances : bytes
        From its node to nodes 0, 1, 2, ...; 0 where unknown.
    """

    processor: int = 0
    cache: int = 0
    node: int = 0
    package: int = 0
    distances: bytes = b""

    def pack(self) -> bytes:
        """As `SEAT_NBYTES` bytes."""
        return _FORM.pack(self.processor, self.cache, self.node, self.package, self.distances)

    @classmethod
    def unpack(cls, words: bytes) -> Seat:
        """The inverse of `pack`."""
        processor, cache, node, package, distances = _FORM.unpack(words)
        return cls(processor, cache, node, package, distances.rstrip(b"\0"))

    def distance(self, node: int) -> int:
        """The distance to the node of another rank."""
        if 0 <= node < len(self.distances) and self.distances[node]:
            return self.distances[node]
        return LOCAL_DISTANCE if node == self.node else REMOTE_DISTANCE


class Domains(NamedTuple):
    """The domains of a group: the same on all its ranks.

    Attributes
    ----------
    caches, nodes, packages : tuple of int
        By rank, the number of its last-level cache, NUMA node and package, counted from 0 as they first appear.
    distances : tuple of tuple of int
        From node to node, by these numbers: 10 is local, as the kernel has it.
    """

    caches: tuple[int, ...]
    nodes: tuple[int, ...]
    packages: tuple[int, ...]
    distances: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, seats: Sequence[Seat]) -> Domains:
        """The domains that follow from the locations of the ranks."""
        nodes = _numbered([seat.node for seat in seats])
        # The distances of a node are those of the first rank there.
        first = [seats[nodes.index(n)] for n in range(max(nodes) + 1)]
        return cls(
            _numbered([(seat.package, seat.cache) for seat in seats]),
            nodes,
            _numbered([seat.package for seat in seats]),
            tuple(tuple(a.distance(b.node) for b in first) for a in first),
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

    def distance(self, rank: int, other: int) -> int:
        """The distance from the node of one rank to that of another."""
        return self.distances[self.nodes[rank]][self.nodes[other]]


def members(way: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each part of one of `Domains.levels`, in order."""
    return tuple(tuple(r for r, n in enumerate(way) if n == part) for part in range(max(way) + 1))


def own_seat(rank: int, size: int, sysfs: str = "/sys", procfs: str = "/proc") -> Seat:
    """The location of the calling thread now; if ``SHMRING_TOPOLOGY`` names a file, that of its rank in this topology.

    Parameters
    ----------
    rank, size : int
        The rank of this process among all that were started together; it selects the processor in a forced topology.

    Raises
    ------
    ValueError
        The file cannot be read, or describes no topology.
    """
    if path := os.environ.get(ENVIRON):
        return dealt_seat(load(path), rank, size)
    return seat_at(max(0, processor_of(procfs=procfs)), sysfs)


def dealt_seat(topology: Topology, rank: int, size: int) -> Seat:
    """The location of a rank if ranks are assigned to all processors in blocks, consecutive ranks side by side."""
    order = packed_order(topology)
    return topology_seat(topology, order[rank * len(order) // size if size <= len(order) else rank % len(order)])


def packed_order(topology: Topology) -> tuple[int, ...]:
    """All processors, sorted by package, then node, last-level cache and core."""
    ways = (topology.packages, [node.processors for node in topology.nodes], topology.last_level_groups, topology.cores)
    places = [{number: i for i, group in enumerate(way) for number in group} for way in ways]
    return tuple(sorted(topology.processors, key=lambda number: [*(place.get(number, -1) for place in places), number]))


def topology_seat(topology: Topology, processor: int) -> Seat:
    """The location of a processor in a topology."""
    package = _index(topology.packages, processor)
    node = next((node for node in topology.nodes if processor in node.processors), topology.nodes[0])
    reach = {other.number: d for other, d in zip(topology.nodes, node.distances, strict=False)}
    return Seat(processor, _index(topology.last_level_groups, processor), node.number, package, _row(reach))


def _index(groups: Sequence[Sequence[int]], processor: int) -> int:
    return next(i for i, group in enumerate(groups) if processor in group)


def seat_at(processor: int, sysfs: str = "/sys") -> Seat:
    """The location of a processor according to sysfs, also if it is outside the affinity mask."""
    root = Path(sysfs)
    package = package_of(root, processor)
    last = max(caches_of(root, processor), key=lambda cache: cache.level, default=None)
    nodes = nodes_of(root)
    node, reach = 0, {0: LOCAL_DISTANCE}
    for number, members, distances in nodes:
        if processor in members:
            node, reach = number, dict(zip((other for other, _, _ in nodes), distances, strict=False))
            break
    return Seat(processor, min(last.processors if last else (), default=-1 - package), node, package, _row(reach))


def _row(reach: dict[int, int]) -> bytes:
    row = bytes(min(max(reach.get(number, 0), 0), 255) for number in range(NODES_MAX))
    return row.rstrip(b"\0")


def _together(way: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The common refinement of two partitions."""
    return _numbered(list(zip(way, other, strict=True)))


def _numbered(keys: Sequence[Hashable]) -> tuple[int, ...]:
    """Numbers for keys, from 0 on, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)
