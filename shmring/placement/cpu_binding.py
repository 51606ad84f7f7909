"""CPU affinity masks for ranks, such that consecutive ranks share caches and nodes."""

from __future__ import annotations

from collections.abc import Sequence

from shmring.placement.locality import packed_order
from shmring.placement.topology import Topology

UNITS = ("core", "l3", "numa", "none")


def masks(topology: Topology, size: int, unit: str) -> list[tuple[int, ...]]:
    """The affinity masks of ``size`` ranks.

    Parameters
    ----------
    topology : Topology
        The machine; only its allowed processors are used.
    size : int
        The number of ranks.
    unit : {"core", "l3", "numa", "none"}
        The processors in a mask: the hardware threads of one core, the processors of one last-level cache, or of one
        NUMA node, or all.

    Returns
    -------
    list of tuple of int
        By rank. Ranks are spread evenly over the units, in blocks: rank r of p gets unit r * units // p.

    Raises
    ------
    ValueError
        There is no such unit.
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
