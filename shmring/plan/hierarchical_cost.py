"""Whether domains pay: what a flat and a nested plan take, by bytes touched, bytes across links and synchronisations.

The most loaded link of a level carries what the ranks of one domain load from all others, or others from it. A flat
plan hides its synchronisations in its pipeline but for one or two; a nested one passes more stations, so chunks are
made small enough for the stations to overlap (`hierarchical.chunks_for`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from .hierarchical import chunks_for, fits
from .hierarchy import Hierarchy, Level
from .limits import Costs, Limits

# Those whose operands are folded.
FOLDING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
# A word within a domain and between two, in seconds, and how many such loads a processor has under way at a time: of
# the order of what is measured on servers. They decide about barriers only.
NEAR_S, FAR_S, LOOKS = 6e-8, 1.4e-7, 4
HIERARCHICAL_KINDS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast")


def flat_seconds(kind: str, hierarchy: Hierarchy, nbytes: int, costs: Costs) -> float:
    """What the best flat plan takes; ``nbytes``: of the vector, or of all blocks."""
    p = hierarchy.size
    # (bytes touched by the busiest rank, bytes over the fullest link, synchronisations), in vectors.
    touched, syncs = {
        "all_reduce": (5 - 2 / p, 2),
        "reduce": (4.0, 2),
        "reduce_scatter": (3 - 1 / p, 1),
        "all_gather": (2.0, 1),
        "broadcast": (2.0, 1),
    }[kind]
    ways = [(touched, _fullest(hierarchy.levels, lambda m: _over(kind, p, m)), syncs)]
    if kind == "all_reduce":
        ways.append((p + 3, _fullest(hierarchy.levels, lambda m: m * (p - m)), 1))
    if kind == "reduce":
        ways.append((p + 1, _fullest(hierarchy.levels, lambda m: p - m), 1))
    return min(
        nbytes * (touched / costs.bytes_per_second + across / costs.link_bytes_per_second) + syncs * costs.latency
        for touched, across, syncs in ways
    )


def hierarchical_seconds(
    kind: str, hierarchy: Hierarchy, nbytes: int, costs: Costs, *, wide: int = 1, within: Sequence[Level] = ()
) -> float:
    """What the nested plan takes. ``within``: finer levels, of which it does not know."""
    p, m = hierarchy.size, min(map(len, hierarchy.domains))
    fan = max(_siblings(hierarchy))  # domains that get something from one and the same
    stations = len(hierarchy.runs)
    hops = len(hierarchy.levels)
    more = 2 * (wide - 1) * (stations - 1) / p  # the rest of a prefix that is stored and loaded
    touched = {
        "all_reduce": 5 + 2 / m + more,
        "reduce": 5 + more,
        "reduce_scatter": 3 + more,
        "all_gather": 2 + 2 / m,
        "broadcast": 2 + 2 / m,
    }
    # The prefix comes over a link and the result, which goes out as often as there are siblings.
    prefix = wide * _visits(hierarchy)
    over = {
        "all_reduce": max(prefix + 1, fan),
        "reduce": prefix,
        "reduce_scatter": prefix + 1,
        "all_gather": 1,
        "broadcast": fan,
    }
    across: float = over[kind]
    if within:
        # Inside a domain it does as a flat plan does among that many ranks.
        ranks = max(map(len, hierarchy.domains))
        across = max(across, _fullest(within, lambda m: _over(kind, ranks, m)))
    seconds = nbytes * (touched[kind] / costs.bytes_per_second + across / costs.link_bytes_per_second)
    delay = (stations if kind in FOLDING else 0) + (1 if kind in ("reduce", "reduce_scatter") else hops)
    chunks = chunks_for(seconds, delay, costs)
    return (chunks + delay) * (seconds / chunks + costs.latency)


def use_hierarchical_barrier(hierarchy: Hierarchy, limits: Limits) -> bool:
    """Whether a barrier goes by the domains: more waits, and looks at fewer ranks, most of them near."""
    if limits.hierarchical_nbytes is not None:
        return limits.hierarchical_nbytes == 0
    p, q, m = hierarchy.size, len(hierarchy.domains), max(map(len, hierarchy.domains))
    flat = FAR_S + (m * NEAR_S + (p - m) * FAR_S) / LOOKS
    return 2 * (NEAR_S + len(hierarchy.levels) * FAR_S) + (m * NEAR_S + q * FAR_S) / LOOKS < flat


def hierarchy_for(
    kind: str, hierarchy: Hierarchy | None, nbytes: int, limits: Limits, costs: Costs, *, wide: int = 1
) -> Hierarchy | None:
    """The domains by which a collective should go, of all levels or of the coarser ones; None if by none."""
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
    """Vectors over the border of a domain of ``m`` among ``p`` ranks, one way, by a flat plan for large messages."""
    if kind == "broadcast":
        return p - m
    return (m + 1 if kind == "reduce" else 2 * m if kind == "all_reduce" else m) * (p - m) / p


def _fullest(levels: Sequence[Level], over: Callable[[int], float]) -> float:
    """The most that crosses the border of any domain of any level."""
    return max(over(level.count(number)) for level in levels for number in set(level))


def _visits(hierarchy: Hierarchy) -> int:
    """How often a fold in rank order comes to one and the same domain from another one: once, if ranks that live
    together are neighbours by number.
    """
    return max(
        max(Counter(here for before, here in pairwise(level) if here != before).values(), default=0)
        for level in hierarchy.levels
    )


def _siblings(hierarchy: Hierarchy) -> list[int]:
    """Of each level, how many domains get what enters the larger domain from the first of them."""
    outer = (*hierarchy.levels[1:], (0,) * hierarchy.size)
    return [
        max(len({i for i, o in zip(inner, around, strict=True) if o == number}) for number in set(around)) - 1
        for inner, around in zip(hierarchy.levels, outer, strict=True)
    ]
