"""Locality domains of ranks, clustered from measured latencies between all pairs.

Where the system does not report which processors share a cache or a socket (virtual machines), or reports it wrongly,
the ranks measure it: all pairs exchange words, as many pairs at a time as possible, and every rank derives the same
domains from the table of all times.
"""

from __future__ import annotations

from collections.abc import Sequence

Level = tuple[int, ...]

# Shorter latencies occur within a cluster of cores or a socket; borders inside (two threads of one core) are ignored.
FAR_NS = 200.0
# Across a border latencies are this many times as long.
STEP = 1.4


def partner(rank: int, stage: int, size: int) -> int | None:
    """The partner of a rank in a stage, 0 <= stage < `stages`, so that every pair has one stage; None: no partner.

    The circle method of round-robin tournaments: one rank is fixed, the others rotate.
    """
    n = stages(size)
    if rank == n:  # the fixed rank: its partner is the one that would be paired with itself
        return stage * (n + 1) // 2 % n
    other = (stage - rank) % n
    if other == rank:
        other = n
    return other if other < size else None


def stages(size: int) -> int:
    """The number of stages that cover all pairs: odd."""
    return size - 1 if size % 2 == 0 else size


def domains_by_times(times: Sequence[Sequence[float]]) -> tuple[Level, ...]:
    """Domains, finest level first, as in `shmring.core.placement.locality.Domains.levels`.

    ``times``: the latency from each rank to each other. Of the two values of a pair the smaller counts, since
    disturbances only lengthen it. Latencies across a border are at least `FAR_NS`, and at least `STEP` times as long as
    any that joins ranks of one domain.

    Single linkage: ranks are joined in the order of their latencies, nearest first; a border is where the joining
    latency jumps. One pair with a wrong long latency does no harm if both of its ranks have another near rank.
    """
    size = len(times)
    pairs = sorted((min(times[a][b], times[b][a]), a, b) for a in range(size) for b in range(a))
    number = list(range(size))
    levels: list[Level] = []
    joined_at = 0.0
    for time, a, b in pairs:
        if number[a] == number[b]:
            continue
        if joined_at and time >= FAR_NS and time >= STEP * joined_at:
            levels.append(_renumbered(number))
        joined_at = max(joined_at, time)
        gone = number[a]
        number = [number[b] if n == gone else n for n in number]
    return tuple(levels)


def _renumbered(number: Sequence[int]) -> Level:
    """From 0 on, in the order of first appearance."""
    found: dict[int, int] = {}
    return tuple(found.setdefault(n, len(found)) for n in number)
