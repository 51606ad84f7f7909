"""Communicators by name: the default one, and those of exported graphs."""

from __future__ import annotations

import weakref

from shmring.communicator import Communicator
from shmring.jax.functions.registry import Registered
from shmring.launch.init import init

_names: dict[str, Registered] = {}  # "" is the default communicator
_registered: weakref.WeakValueDictionary[int, Registered] = weakref.WeakValueDictionary()  # by id of the communicator


def communicator(name: str = "") -> Communicator:
    """Return the communicator of that name; by default the one that functions without ``comm`` use.

    Parameters
    ----------
    name : str

    Returns
    -------
    Communicator

    Raises
    ------
    KeyError
        No communicator has that name.
    Exception
        Any error of `shmring.init`, if the default one is made.

    Notes
    -----
    The default one is made at its first use by `shmring.init`, from the environment variables of the launcher, unless
    `set_communicator` has set another; then the call is collective.
    """
    return registered(name).comm


def set_communicator(comm: Communicator, name: str = "") -> None:
    """Name a communicator, for functions and for exported graphs; ``""`` makes it the default.

    Parameters
    ----------
    comm : Communicator
        Kept alive until its name is given to another one. Not closed by this module.
    name : str
        Stored in exported graphs, so it must be the same on all ranks and in all processes that execute them.

    Notes
    -----
    Not collective. Functions that were compiled before keep the communicator that they were compiled with.
    """
    _names[name] = registered(comm)


def registered(comm: Communicator | Registered | str | None) -> Registered:
    """The entry of a communicator, given as itself or by name; None: the default one."""
    if isinstance(comm, Registered):
        return comm
    if isinstance(comm, Communicator):
        return _registered.get(id(comm)) or _registered.setdefault(id(comm), Registered(comm))
    name = comm or ""
    if not isinstance(name, str):
        raise TypeError(f"comm={comm!r}: must be a shmring.Communicator, its name, or None for the default one")
    if name not in _names:
        if name:
            raise KeyError(f"no communicator is named {name!r}: call shmring.jax.set_communicator(comm, {name!r})")
        set_communicator(init())
    return _names[name]


def name_of(entry: Registered) -> str:
    """What an exported graph calls a communicator: its name, which all processes that execute the graph must know."""
    for name, named in _names.items():
        if named is entry:
            return name
    raise ValueError(
        f"{entry!r} has no name, by which another process could find it: call "
        "shmring.jax.set_communicator(comm, name) before jax.export"
    )
