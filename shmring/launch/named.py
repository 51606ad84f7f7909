"""Communicators by name: the default one of a process, and those that compiled and exported programs look up."""

from __future__ import annotations

from shmring.communicator import Communicator
from shmring.launch.init import init

by_name: dict[str, Communicator] = {}  # "" is the default communicator


def communicator(name: str = "") -> Communicator:
    """Return the communicator of that name; by default the one of calls without ``comm``.

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
        An error of `shmring.init`, if this call makes the default communicator.

    Notes
    -----
    The default communicator is made at its first use by `shmring.init`, from the environment variables of the launcher
    (torchrun, ``shmring run``, ...), unless `set_communicator` has set another; then the call is collective. One
    registry serves all frameworks: `shmring.jax` finds a name that `shmring.torch` has given.
    """
    if name not in by_name:
        if name:
            raise KeyError(f"no communicator is named {name!r}: call set_communicator(comm, {name!r}) first")
        set_communicator(init())
    return by_name[name]


def set_communicator(comm: Communicator, name: str = "") -> None:
    """Name a communicator for calls, custom operators and exported programs; ``""`` makes it the default.

    Parameters
    ----------
    comm : Communicator
        Kept alive until another communicator gets its name. Not closed by this module.
    name : str
        Stored in the graphs of compiled and exported programs, so it must be the same on all ranks and in all
        processes that execute them.

    Notes
    -----
    Not collective. Functions that JAX compiled before keep the communicator that they were compiled with.
    """
    if not isinstance(comm, Communicator):
        raise TypeError(f"comm={comm!r}: must be a shmring.Communicator")
    by_name[name] = comm
