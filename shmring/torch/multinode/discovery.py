"""Which ranks of a group share a machine: found out by mapping each other's memory, never by names of hosts.

Containers on one machine have different host names and may share memory; equal names mean nothing either. So every rank
puts up a segment of one page, and looks for those of the ranks before it: whose it can map is its neighbour.
"""

from __future__ import annotations

import os
from datetime import timedelta

from shmring.memory.header import HEADER_NBYTES
from shmring.memory.segment import OUTBOX, create, segment_name, try_attach

FORCED = "SHMRING_NODE"  # ranks with different values take each other for strangers


def nodes(store, rank: int, size: int, session: str, patience: timedelta) -> list[list[int]]:
    """The ranks of each machine, in order, machines in the order of their first ranks. All ranks call.

    Parameters
    ----------
    store : torch.distributed.Store
        The group's.
    rank, size : int
    session : str
        Of this group alone.
    patience : datetime.timedelta
        How long to wait for the others to come.
    """
    label = os.environ.get(FORCED, "")
    with create(segment_name(f"{session}{label}", f"n{rank}"), HEADER_NBYTES, kind=OUTBOX, rank=rank, size=size) as own:
        own.announce()
        store.set(f"{session}/here/{rank}", b"")
        first = _first_neighbour(store, rank, f"{session}{label}", session, patience)
        store.set(f"{session}/first/{rank}", str(first))
        keys = [f"{session}/first/{r}" for r in range(size)]
        store.wait(keys, patience)
        firsts = [int(store.get(key)) for key in keys]
        own.unlink()
    return [[r for r in range(size) if firsts[r] == first] for first in sorted(set(firsts))]


def _first_neighbour(store, rank: int, found_by: str, session: str, patience: timedelta) -> int:
    for r in range(rank):
        store.wait([f"{session}/here/{r}"], patience)
        segment = try_attach(segment_name(found_by, f"n{r}"), kind=OUTBOX, rank=r)
        if segment is not None:
            segment.close()
            return r
    return rank
