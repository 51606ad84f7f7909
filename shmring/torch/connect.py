"""Connects the ranks of a process group: shmring within each node, gloo between nodes."""

from __future__ import annotations

import atexit
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

import shmring
from shmring.base import lifecycle
from shmring.nodes.communicator import NodesCommunicator
from shmring.nodes.discovery import discover_nodes, forced_node
from shmring.nodes.group import NodesGroup, join_node
from shmring.torch.gloo_wire import GlooWire
from shmring.torch.processgroup import ProcessGroup
from shmring.torch.work import seconds


class SeveralMachinesError(Exception):
    """The ranks are on several machines: gloo itself makes their group."""


def make(options, settings, kind: type[ProcessGroup] = ProcessGroup, one_machine: bool = False) -> ProcessGroup:
    """Connect the ranks of a group. Called by `torch.distributed` on all of them.

    Parameters
    ----------
    options : torch.distributed's _DistributedBackendOptions
        Rank, size and store.
    settings : dict or None
        The program's ``pg_options``: fields of `shmring.config.Config`.
    kind : type
        The class of the group.
    one_machine : bool
        Raise `SeveralMachinesError` on all ranks if they are on several machines.
    """
    rank, size, store = options.group_rank, options.group_size, options.store
    if settings is not None and not isinstance(settings, dict):
        raise TypeError(f"pg_options={settings!r}: must be a dict of settings, such as {{'nslots': 4}}")
    session = _session(store, rank, size, options.group_id)
    timeout_s = seconds(options.timeout)
    settings = {"timeout": timeout_s, **(settings or {})}
    machines = _machines(store, rank, size, session, options.timeout)
    if one_machine and len(machines) > 1:
        raise SeveralMachinesError
    comm: shmring.Communicator
    if len(machines) > 1:
        comm = _join(machines, rank, session, store, timeout_s, settings)
    else:
        comm = shmring.init(rank=rank, size=size, session=session, rendezvous_timeout=timeout_s, **settings)
    return kind(comm, store, options.timeout)


def _session(store, rank: int, size: int, group: str) -> str:
    """A name that only the ranks of this group share; a new one each time a group is made with this store."""
    turn = (store.add("shmring/arrived", 1) - 1) // size
    key = f"shmring/session/{turn}"
    if rank == 0:
        store.set(key, f"torch.{group}.{secrets.token_hex(8)}")
    return store.get(key).decode()


def _machines(store, rank: int, size: int, session: str, patience: timedelta) -> list[list[int]]:
    """The ranks of each machine, a node, in order. All ranks call.

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


def _join(
    machines: Sequence[Sequence[int]], rank: int, session: str, store, timeout_s: float | None, settings: dict
) -> NodesCommunicator:
    """Connect the ranks: those of a node in shared memory, others over the network. All ranks call.

    ``machines`` is what `_machines` finds, ``session`` unique to this group, ``store`` the group's, ``timeout_s`` the
    rendezvous's. ``settings`` are fields of `shmring.config.Config`, the ``timeout`` of calls among them.
    """
    local = join_node(machines, rank, session, timeout_s, settings)
    size = sum(map(len, machines))

    def connect() -> GlooWire:
        return GlooWire(session, dist.PrefixStore(session, store), rank, size, local.config.timeout)

    return NodesCommunicator(NodesGroup.over(local, machines, connect))


# A second time, as this module is imported after torch: these leave before torch's own exit handlers run.
atexit.register(lifecycle.leave, lifecycle.Stage.MULTINODE)
