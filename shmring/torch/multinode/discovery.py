"""Finds out which ranks of a group share a node: those that can map each other's memory, whatever their host names.

Containers on one machine have different host names and may share memory; equal host names prove nothing either. So
every rank creates a segment of one page and tries to map those of the lower ranks. The lowest rank whose segment it can
map identifies its node.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta

from shmring.memory.header import HEADER_NBYTES
from shmring.memory.segment import OUTBOX, create, segment_name, try_attach

FORCED = "SHMRING_NODE"  # ranks with different values are on different nodes; for tests


def nodes(store, rank: int, size: int, session: str, patience: timedelta) -> list[list[int]]:
    """The ranks of each node in order, nodes in the order of their first ranks. All ranks call.

    ``store`` is the group's; ``session`` is unique to this group; ``patience`` is how long to wait for the other ranks.
    """
    label = os.environ.get(FORCED, "")
    with create(segment_name(f"{session}{label}", f"n{rank}"), HEADER_NBYTES, kind=OUTBOX, rank=rank, size=size) as own:
        own.announce()
        store.set(f"{session}/here/{rank}", b"")
        first = _first_on_node(store, rank, f"{session}{label}", session, patience)
        store.set(f"{session}/first/{rank}", str(first))
        keys = [f"{session}/first/{r}" for r in range(size)]
        store.wait(keys, patience)
        firsts = [int(store.get(key)) for key in keys]
        own.unlink()
    return [[r for r in range(size) if firsts[r] == first] for first in sorted(set(firsts))]


def _first_on_node(store, rank: int, names: str, session: str, patience: timedelta) -> int:
    for r in range(rank):
        store.wait([f"{session}/here/{r}"], patience)
        segment = try_attach(segment_name(names, f"n{r}"), kind=OUTBOX, rank=r)
        if segment is not None:
            segment.close()
            return r
    return rank


def runs(nodes: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Runs of consecutive ranks on one node: the node and their local ranks, in the order of all ranks."""
    where = {r: (node, local_rank) for node, ranks in enumerate(nodes) for local_rank, r in enumerate(ranks)}
    found: list[tuple[int, list[int]]] = []
    for r in range(len(where)):
        node, local_rank = where[r]
        if not found or found[-1][0] != node:
            found.append((node, []))
        found[-1][1].append(local_rank)
    return found
