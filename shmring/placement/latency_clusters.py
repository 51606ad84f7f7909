"""Nearness: which ranks are near one another, from the times that words take between them.

Where the system does not tell which processors share a cache or a socket (virtual machines), or tells wrong, the ranks
find out: all pairs exchange words, as many pairs at a time as there are, and from the table of all times each rank
concludes the same domains.
"""

from __future__ import annotations

from collections.abc import Sequence

Level = tuple[int, ...]

# A word that takes less has not left the cluster of cores, or the socket: what is nearer still (two threads of one
# core) is no border that matters.
FAR_NS = 200.0
# On the far side of a border words take this much longer.
STEP = 1.4


def partner(rank: int, stage: int, size: int) -> int | None:
    """With whom a rank is paired in a stage, 0 <= stage < `stages`, so that every two ranks meet in one; None: nobody.

    The circle method of tournaments: one rank stays, the others go round.
    """
    n = stages(size)
    if rank == n:  # the one who stays: of the pairs that the others make it takes who would meet itself
        return stage * (n + 1) // 2 % n
    other = (stage - rank) % n
    if other == rank:
        other = n
    return other if other < size else None


def stages(size: int) -> int:
    """How many it takes until every two ranks have met: an odd number."""
    return size - 1 if size % 2 == 0 else size


def domains_by_times(times: Sequence[Sequence[float]], far: float = FAR_NS, step: float = STEP) -> tuple[Level, ...]:
    """Domains, finest level first, as in `shmring.placement.locality.Domains.levels`.

    Parameters
    ----------
    times : p x p numbers
        What a word takes from each rank to each other, as either of the two has measured it; of a pair the smaller
        counts, since what disturbs makes it longer. The diagonal is not looked at.
    far : float
        A border is where words take at least this long.
    step : float
        And at least so many times as long as any that binds a domain together.

    Notes
    -----
    Ranks are joined in the order of their times, nearest first (single linkage, which no pair that was measured too
    long can spoil as long as each of its ranks has another near one). Where the times that join leap is a border.
    """
    size = len(times)
    pairs = sorted((min(times[a][b], times[b][a]), a, b) for a in range(size) for b in range(a))
    number = list(range(size))
    levels: list[Level] = []
    joined_at = 0.0
    for time, a, b in pairs:
        if number[a] == number[b]:
            continue
        if joined_at and time >= far and time >= step * joined_at:
            levels.append(_renumbered(number))
        joined_at = max(joined_at, time)
        gone = number[a]
        number = [number[b] if n == gone else n for n in number]
    return tuple(levels)


def _renumbered(number: Sequence[int]) -> Level:
    """From 0 on, in the order of first appearance."""
    found: dict[int, int] = {}
    return tuple(found.setdefault(n, len(found)) for n in number)
