"""Finds out which ranks of a group share a node: those that can map each other's memory, whatever their host names.

Containers on one machine have different host names and may share memory; equal host names prove nothing either. So
every rank creates a segment of one page and tries to map those of the lower ranks. The lowest rank whose segment it can
map identifies its node.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from shmring.memory.header import HEADER_NBYTES
from shmring.memory.segment import OUTBOX, create, segment_name, try_attach

FORCED = "SHMRING_NODE"  # ranks with different values are on different nodes; for tests


def discover_nodes(exchange: Callable[[str], list[str]], rank: int, size: int, session: str) -> list[list[int]]:
    """The ranks of each node in order, nodes in the order of their first ranks. All ranks call.

    ``exchange(text)`` returns the texts of all ranks; ``session`` is unique to this group.
    """
    names = f"{session}{os.environ.get(FORCED, '')}"
    with create(segment_name(names, f"n{rank}"), HEADER_NBYTES, kind=OUTBOX, rank=rank, size=size) as own:
        own.announce()
        exchange("here")
        firsts = [int(first) for first in exchange(str(_first_on_node(names, rank)))]
        own.unlink()
    return [[r for r in range(size) if firsts[r] == first] for first in sorted(set(firsts))]


def _first_on_node(names: str, rank: int) -> int:
    for r in range(rank):
        segment = try_attach(segment_name(names, f"n{r}"), kind=OUTBOX, rank=r)
        if segment is not None:
            segment.close()
            return r
    return rank
