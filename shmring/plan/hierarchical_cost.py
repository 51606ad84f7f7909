"""Cost model of hierarchical against flat plans: bytes touched, bytes over links, and synchronisations.

The busiest link of a level carries what the ranks of one domain load from all others, or the others from it. A flat
plan hides all but one or two synchronisations in its pipeline. A hierarchical plan has more pipeline stages, so its
chunks are made small enough for the stages to overlap (`hierarchical.chunks_for`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from .hierarchical import chunks_for, fits
from .hierarchy import Hierarchy, Level
from .limits import Costs, Limits

# Collectives that fold operands.
FOLDING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
# Seconds for a word within a domain and between two, and the number of such loads in flight per processor: of the order
# measured on servers. They decide about barriers only.
NEAR_S, FAR_S, LOADS_IN_FLIGHT = 6e-8, 1.4e-7, 4
HIERARCHICAL_KINDS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast")


def flat_seconds(kind: str, hierarchy: Hierarchy, nbytes: int, costs: Costs) -> float:
    """Seconds of the best flat plan; ``nbytes``: of the vector, or of all blocks."""
    p = hierarchy.size
    # (bytes touched by the busiest rank, bytes over the busiest link, synchronisations); bytes in vectors.
    touched, syncs = {
        "all_reduce": (5 - 2 / p, 2),
        "reduce": (4.0, 2),
        "reduce_scatter": (3 - 1 / p, 1),
        "all_gather": (2.0, 1),
        "broadcast": (2.0, 1),
    }[kind]
    ways = [(touched, _busiest_link(hierarchy.levels, lambda m: _over(kind, p, m)), syncs)]
    if kind == "all_reduce":
        ways.append((p + 3, _busiest_link(hierarchy.levels, lambda m: m * (p - m)), 1))
    if kind == "reduce":
        ways.append((p + 1, _busiest_link(hierarchy.levels, lambda m: p - m), 1))
    return min(
        nbytes * (touched / costs.bytes_per_second + across / costs.link_bytes_per_second) + syncs * costs.latency
        for touched, across, syncs in ways
    )


def hierarchical_seconds(
    kind: str, hierarchy: Hierarchy, nbytes: int, costs: Costs, *, wide: int = 1, within: Sequence[Level] = ()
) -> float:
    """Seconds of the hierarchical plan. ``within``: finer levels, which the plan ignores."""
    p, m = hierarchy.size, min(map(len, hierarchy.domains))
    siblings = max(_siblings(hierarchy))  # domains that fetch from the same domain
    runs = len(hierarchy.runs)
    hops = len(hierarchy.levels)
    more = 2 * (wide - 1) * (runs - 1) / p  # the additional bytes of wide prefixes
    touched = {
        "all_reduce": 5 + 2 / m + more,
        "reduce": 5 + more,
        "reduce_scatter": 3 + more,
        "all_gather": 2 + 2 / m,
        "broadcast": 2 + 2 / m,
    }
    # The prefix comes in over a link, and so does the result, which goes out to every sibling.
    prefix = wide * _visits(hierarchy)
    over = {
        "all_reduce": max(prefix + 1, siblings),
        "reduce": prefix,
        "reduce_scatter": prefix + 1,
        "all_gather": 1,
        "broadcast": siblings,
    }
    across: float = over[kind]
    if within:
        # Inside a domain the plan loads as a flat plan among that many ranks.
        ranks = max(map(len, hierarchy.domains))
        across = max(across, _busiest_link(within, lambda m: _over(kind, ranks, m)))
    seconds = nbytes * (touched[kind] / costs.bytes_per_second + across / costs.link_bytes_per_second)
    delay = (runs if kind in FOLDING else 0) + (1 if kind in ("reduce", "reduce_scatter") else hops)
    chunks = chunks_for(seconds, delay, costs)
    return (chunks + delay) * (seconds / chunks + costs.latency)


def use_hierarchical_barrier(hierarchy: Hierarchy, limits: Limits) -> bool:
    """Whether a hierarchical barrier is faster: it has more waits, but loads fewer counters, most of them near."""
    if limits.hierarchical_nbytes is not None:
        return limits.hierarchical_nbytes == 0
    p, q, m = hierarchy.size, len(hierarchy.domains), max(map(len, hierarchy.domains))
    flat = FAR_S + (m * NEAR_S + (p - m) * FAR_S) / LOADS_IN_FLIGHT
    return 2 * (NEAR_S + len(hierarchy.levels) * FAR_S) + (m * NEAR_S + q * FAR_S) / LOADS_IN_FLIGHT < flat


def hierarchy_for(
    kind: str, hierarchy: Hierarchy | None, nbytes: int, limits: Limits, costs: Costs, *, wide: int = 1
) -> Hierarchy | None:
    """The hierarchy that a collective should use, all levels or only the coarser ones; None for a flat plan."""
    if hierarchy is None or kind not in HIERARCHICAL_KINDS:
        return None
    if limits.hierarchical_nbytes is not None and nbytes <= limits.hierarchical_nbytes:
        return None
    found = None
    least = float("inf") if limits.hierarchical_nbytes is not None else flat_seconds(kind, hierarchy, nbytes, costs)
    for k in range(len(hierarchy.levels)):
        coarser = Hierarchy(hierarchy.levels[k:])
        if fits(kind, coarser, limits, wide):
            seconds = hierarchical_seconds(kind, coarser, nbytes, costs, wide=wide, within=hierarchy.levels[:k])
            if seconds < least:
                found, least = coarser, seconds
    return found


def _over(kind: str, p: int, m: int) -> float:
    """Vectors over the link of a domain of ``m`` among ``p`` ranks, one way, by a flat plan for large messages."""
    if kind == "broadcast":
        return p - m
    return (m + 1 if kind == "reduce" else 2 * m if kind == "all_reduce" else m) * (p - m) / p


def _busiest_link(levels: Sequence[Level], over: Callable[[int], float]) -> float:
    """The bytes over the busiest link of any domain of any level."""
    return max(over(level.count(number)) for level in levels for number in set(level))


def _visits(hierarchy: Hierarchy) -> int:
    """How often a fold in rank order enters the same domain from another one: once if the ranks of each domain are
    consecutive.
    """
    return max(
        max(Counter(here for before, here in pairwise(level) if here != before).values(), default=0)
        for level in hierarchy.levels
    )


def _siblings(hierarchy: Hierarchy) -> list[int]:
    """For each level, how many domains fetch from the domain through which data enters the next larger one."""
    outer = (*hierarchy.levels[1:], (0,) * hierarchy.size)
    return [
        max(len({i for i, o in zip(inner, around, strict=True) if o == number}) for number in set(around)) - 1
        for inner, around in zip(hierarchy.levels, outer, strict=True)
    ]
