"""CPU affinity masks for ranks, such that consecutive ranks share caches and nodes."""

from __future__ import annotations

from collections.abc import Sequence

from shmring.core.placement.locality import packed_order
from shmring.core.placement.topology import Topology

UNITS = ("core", "l3", "numa", "none")


def masks(topology: Topology, size: int, unit: str) -> list[tuple[int, ...]]:
    """The affinity masks of ``size`` ranks, by rank, from the allowed processors of a topology.

    A mask contains one ``unit``: the hardware threads of one core, the processors of one last-level cache (``l3``), or
    of one NUMA node (``numa``), or all (``none``). Ranks are spread evenly over the units, in blocks: rank r of p gets
    unit r * units // p. `ValueError` if there is no such unit.
    """
    ways: dict[str, Sequence[tuple[int, ...]]] = {
        "core": topology.cores,
        "l3": topology.last_level_groups,
        "numa": [node.processors for node in topology.nodes if node.processors],
        "none": [topology.processors],
    }
    if unit not in ways:
        raise ValueError(f"bind={unit!r}: must be one of {', '.join(UNITS)}")
    place = {processor: i for i, processor in enumerate(packed_order(topology))}
    units = sorted(ways[unit], key=lambda group: place[group[0]])
    return [units[rank * len(units) // size] for rank in range(size)]
