"""Process groups over several machines: shmring within each node, gloo between nodes."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from shmring.base import lifecycle
from shmring.nodes.communicator import NodesCommunicator
from shmring.nodes.discovery import discover_nodes, forced_node
from shmring.nodes.group import NodesGroup, join_node
from shmring.torch.gloo_wire import GlooWire


def nodes(store, rank: int, size: int, session: str, patience: timedelta) -> list[list[int]]:
    """The ranks of each node in order. All ranks call.

    ``store`` is the group's; ``session`` is unique to this group; ``patience`` is how long to wait for the other ranks.
    """
    job = [int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE")]
    forced = forced_node(*(job if job[1] else (rank, size)))
    return discover_nodes(_exchange_by(store, rank, size, session, patience), rank, size, session, forced)


def _exchange_by(store, rank: int, size: int, prefix: str, patience: timedelta) -> Callable[[str], list[str]]:
    nexchanges = 0

    def exchange(text: str) -> list[str]:
        nonlocal nexchanges
        nexchanges += 1
        keys = [f"{prefix}/{nexchanges}/{r}" for r in range(size)]
        store.set(keys[rank], text)
        store.wait(keys, patience)
        return [value.decode() for value in store.multi_get(keys)]

    return exchange


def join(
    machines: Sequence[Sequence[int]], rank: int, session: str, store, timeout_s: float | None, settings: dict
) -> NodesCommunicator:
    """Connect the ranks: those of a node in shared memory, others over the network. All ranks call.

    ``machines`` is what `nodes` finds, ``session`` unique to this group, ``store`` the group's, ``timeout_s`` that of
    the rendezvous. ``settings`` are fields of `shmring.config.Config`, the ``timeout`` of calls among them.
    """
    local = join_node(machines, rank, session, timeout_s, settings)
    size = sum(map(len, machines))

    def connect() -> GlooWire:
        return GlooWire(session, dist.PrefixStore(session, store), rank, size, local.config.timeout)

    return NodesCommunicator(NodesGroup.over(local, machines, connect))


# A second time, as this module is imported after torch: these leave before torch's own exit handlers run.
atexit.register(lifecycle.leave, lifecycle.Stage.MULTINODE)
