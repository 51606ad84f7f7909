"""Communicators as compiled graphs refer to them: by number, or by name in exported ones."""

from __future__ import annotations

import weakref

from shmring.communicator import Communicator
from shmring.jax.functions.registry import Registered
from shmring.launch.named import by_name, communicator

_named: dict[str, Registered] = {}  # keeps the entries of the communicators that have names
_registered: weakref.WeakValueDictionary[int, Registered] = weakref.WeakValueDictionary()  # by id of the communicator


def registered(comm: Communicator | Registered | str | None) -> Registered:
    """The entry of a communicator, given as itself or by name; None: the default one."""
    if isinstance(comm, Registered):
        return comm
    if isinstance(comm, Communicator):
        return _registered.get(id(comm)) or _registered.setdefault(id(comm), Registered(comm))
    name = comm or ""
    if not isinstance(name, str):
        raise TypeError(f"comm={comm!r}: must be a shmring.Communicator, its name, or None for the default one")
    entry = _named.get(name)
    if entry is None or entry.comm is not by_name[name]:
        entry = _named[name] = registered(communicator(name))
    return entry


def name_of(entry: Registered) -> str:
    """What an exported graph calls a communicator: its name, which all processes that execute the graph must know."""
    for name, comm in by_name.items():
        if comm is entry.comm:
            return name
    raise ValueError(
        f"{entry!r} has no name, by which another process could find it: call "
        "shmring.jax.set_communicator(comm, name) before jax.export"
    )
