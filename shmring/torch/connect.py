"""Connects the ranks of a process group: shmring within each node, gloo between nodes."""

from __future__ import annotations

import atexit
import functools
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

import shmring
from shmring.config import configure
from shmring.core.base import lifecycle
from shmring.errors import RendezvousError
from shmring.nodes.discovery import Places, discover, forced_node
from shmring.nodes.group import NodesGroup
from shmring.torch.errors import torch_form
from shmring.torch.gloo_wire import GlooCommunicator, GlooWire
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
    session = _session(store, rank, size, options.group_id, options.timeout)
    timeout_s = seconds(options.timeout)
    settings = {"timeout": timeout_s, **(settings or {})}
    places = _places(store, rank, size, session, options.timeout)
    if one_machine and len(places.nodes) > 1:
        raise SeveralMachinesError
    comm: shmring.Communicator
    if len(places.nodes) > 1:
        comm = _join(places, session, store, timeout_s, settings)
    else:
        comm = shmring.init(rank=rank, size=size, session=session, rendezvous_timeout=timeout_s, **settings)
    return kind(comm, store, options.timeout)


def await_keys(store, keys: Sequence[str], timeout: timedelta) -> None:
    """Wait for ``keys``, one of each rank, for this time and not the store's; raise an error that names late ranks."""
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        missing = [r for r, key in enumerate(keys) if not store.check([key])]
        if missing:
            raise late(missing, timeout) from error


def late(ranks: Sequence[int], timeout: timedelta) -> Exception:
    """The error of a group whose ranks did not all come."""
    names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    text = f"{names} did not come to make the group within {timeout.total_seconds():g} s, its timeout"
    return torch_form(RendezvousError(text), None)


def _session(store, rank: int, size: int, group: str, timeout: timedelta) -> str:
    """A name that only the ranks of this group share; a new one each time a group is made with this store."""
    turn = (store.add("shmring/arrived", 1) - 1) // size
    key = f"shmring/session/{turn}"
    if rank == 0:
        store.set(key, f"torch.{group}.{secrets.token_hex(8)}")
    await_keys(store, [key], timeout)
    return store.get(key).decode()


def _places(store, rank: int, size: int, session: str, patience: timedelta) -> Places:
    """On which machines, as nodes, the ranks are. All ranks call.

    ``store`` is the group's; ``session`` is unique to this group; ``patience`` is how long to wait for the other ranks.
    """
    job = [int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE")]
    forced = forced_node(*(job if job[1] else (rank, size)))
    return discover(_exchange_by(store, rank, size, session, patience), rank, size, session, forced)


def _exchange_by(store, rank: int, size: int, prefix: str, patience: timedelta) -> Callable[[str], list[str]]:
    nexchanges = 0

    def exchange(text: str) -> list[str]:
        nonlocal nexchanges
        nexchanges += 1
        keys = [f"{prefix}/{nexchanges}/{r}" for r in range(size)]
        store.set(keys[rank], text)
        await_keys(store, keys, patience)
        return [value.decode() for value in store.multi_get(keys)]

    return exchange


def _join(places: Places, session: str, store, timeout_s: float | None, settings: dict) -> GlooCommunicator:
    """Connect the ranks: those of a node in shared memory, others over the network. All ranks call.

    ``session`` is unique to this group, ``store`` the group's, ``timeout_s`` the rendezvous's. ``settings`` are fields
    of `shmring.config.Config`, the ``timeout`` of calls among them.
    """
    local = places.join_node(session, timeout_s, configure(**settings))
    limit = timedelta(days=1) if local.config.timeout is None else timedelta(seconds=local.config.timeout)
    try:
        wire = GlooWire(dist.PrefixStore(session, store), places, limit)
        return GlooCommunicator(NodesGroup(local, places, wire, session))
    except BaseException:
        local.abort("this rank could not be connected to other nodes")
        local.close()
        raise


_set_pg_timeout = distributed_c10d._set_pg_timeout


@functools.wraps(_set_pg_timeout)
def _set_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
    chosen = dist.group.WORLD if group is None else group
    if isinstance(chosen, ProcessGroup):
        chosen.set_timeout(timeout)
    else:
        _set_pg_timeout(timeout, group)


distributed_c10d._set_pg_timeout = _set_timeout  # which looks for gloo's and NCCL's classes

# A second time, as this module is imported after torch: these leave before torch's own exit handlers run.
atexit.register(lifecycle.leave, lifecycle.Stage.MULTINODE)
