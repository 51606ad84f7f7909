"""How many threads each rank should have for a large collective: a rule over what all ranks know of one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

# As many as an outbox has strands (SHMRING_THREADS_MAX in _c/layout.h).
MOST = 32
# Fewer processors than these for each rank and helpers only take turns with the program's own threads.
LEAST_PROCESSORS = 4
# By then memory has long been the limit: some cores of a socket draw all that it gives.
MOST_BY_DEFAULT = 8


class Means(NamedTuple):
    """What one rank asks for, and the processors it may use.

    Attributes
    ----------
    threads : int
        How many it wants; below 1: whatever suits the machine.
    processors : frozenset of int
        Its affinity mask.
    quota : float
        How many its control group lets run at a time, of all processes in it; infinity: no limit.
    """

    threads: int
    processors: frozenset[int]
    quota: float = float("inf")


def processors_each(ranks: Sequence[Means]) -> list[float]:
    """How many processors fall to each rank: one that several masks hold is divided, and so is a quota."""
    holders = Counter(number for rank in ranks for number in rank.processors)
    # Rounded, so that thirds of processors add up to whole ones.
    shares = [round(sum(1 / holders[number] for number in rank.processors), 6) for rank in ranks]
    return [min(s, r.quota / len(ranks)) for s, r in zip(shares, ranks, strict=True)]


def team_size(ranks: Sequence[Means], most: int = MOST) -> int:
    """The threads of every rank: the least that any rank asks for, at most ``most``.

    A rank that leaves it open asks for half of the processors that fall to it, from 2 to `MOST_BY_DEFAULT`, and for 1
    where fewer than `LEAST_PROCESSORS` do. A rank without peers has nobody to talk to: 1.
    """
    if len(ranks) < 2:
        return 1
    wanted = [
        rank.threads if rank.threads > 0 else min(int(n) // 2, MOST_BY_DEFAULT) if n >= LEAST_PROCESSORS else 1
        for rank, n in zip(ranks, processors_each(ranks), strict=True)
    ]
    return min(*wanted, most)
