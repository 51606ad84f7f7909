"""A topology as text: a tree of packages, nodes and caches, and the table of node distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shmring.placement.sysfs import size_text, spans

if TYPE_CHECKING:
    from shmring.placement.topology import Topology

Group = tuple[int, ...]
# One partition of the processors: the groups, and the function that labels one.
Way = tuple[Sequence[Group], Callable[[Group], str]]


def draw(topology: Topology) -> str:
    """The tree: packages, in them nodes and last-level caches, whichever contains the other; then the distances."""
    count = len(topology.processors)
    cores = f" on {len(topology.cores)} cores" if len(topology.cores) < count else ""
    lines = [
        f"{topology.model or 'unknown processor'} ({topology.architecture}), "
        f"{count} processor{'s' * (count != 1)}{cores} allowed, {topology.usable:g} usable at a time"
    ]
    of_group = {node.processors: node for node in topology.nodes}
    nodes = [node.processors for node in topology.nodes if node.processors]

    def node_text(group: Group) -> str:
        node = of_group[group]
        memory = f"{size_text(node.memory_nbytes)} memory, {size_text(node.free_nbytes)} free"
        return f"node {node.number}: {spans(group)}; {memory}"

    def cache_text(group: Group) -> str:
        for cache in reversed(topology.caches):
            if cache.processors == group:
                return f"{spans(group)} share {size_text(cache.nbytes)} of level-{cache.level} cache"
        return f"{spans(group)} near each other, as far as is known"

    ways: list[Way] = [(nodes, node_text), (topology.last_level_groups, cache_text)]
    ways.sort(key=lambda way: len(way[0]))  # stable: a node comes before its only cache
    for number, package in enumerate(topology.packages):
        lines.append(f"package {number}: {spans(package)}")
        lines += _branches(package, ways)
    for node in topology.nodes:
        if not node.processors:
            memory = f"{size_text(node.memory_nbytes)} memory, {size_text(node.free_nbytes)} free"
            lines.append(f"node {node.number}: no processors; {memory}")
    if len(topology.nodes) > 1:
        lines.append("distances  " + " ".join(f"{node.number:4}" for node in topology.nodes))
        lines += [f"      {n.number:4} " + " ".join(f"{d:4}" for d in n.distances) for n in topology.nodes]
    free = "an unknown part" if topology.shm_free_nbytes < 0 else size_text(topology.shm_free_nbytes)
    shm = f"{size_text(topology.shm_nbytes)}, {free} free" if topology.shm_nbytes else "no limit of its own"
    lines.append(f"/dev/shm: {shm}; huge pages: {topology.shmem_huge_pages or 'unknown'}")
    return "\n".join(lines)


def _branches(within: Group, ways: Sequence[Way]) -> list[str]:
    """The lines of the groups inside a group, as branches of the tree."""
    if not ways:
        return []
    groups, text = ways[0]
    inside = [group for group in groups if set(group) & set(within)]
    lines = []
    for i, group in enumerate(inside):
        corner, side = ("└─ ", "   ") if i == len(inside) - 1 else ("├─ ", "│  ")
        lines.append(corner + text(group))
        lines += [side + line for line in _branches(group, ways[1:])]
    return lines
