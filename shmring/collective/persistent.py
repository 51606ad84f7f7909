"""Persistent plans: a collective that is made often, with its arguments checked once."""

from __future__ import annotations

from typing import Any

from shmring.collective.prepared import PREPARE, Prepared

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "scan",
    "exscan",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
    "all_reduce_many",
    "broadcast_many",
)


class Persistent:
    """What `shmring.Communicator` is made of, persistent plans: see there."""

    def plan(self, collective: str, *args: Any, **kwargs: Any) -> Prepared:
        """Prepare a collective that is to be made often: ``plan()`` then makes it with what its arrays hold by then.

        Parameters
        ----------
        collective : str
            The name of the method that makes it, e.g. ``"all_reduce"``; any collective on arrays.
        *args, **kwargs
            What that method takes, but for ``async_op``. The arrays must lie dense in memory; they are kept alive.
            Where ``out`` is left out and the method makes a new array, that is made now, and the same one returned each
            time.

        Returns
        -------
        Prepared
            Call it to make the collective, ``plan.start()`` to make it asynchronously, ``plan.describe()`` to read it.

        Raises
        ------
        TypeError, ValueError
            A bad argument, as the method itself has it; or an array that is not contiguous, aligned and in native byte
            order, whose copy of now would be stale later.

        Notes
        -----
        Not collective, and nothing is sent. Peers may make the same call with a plan or without. Saves what lies
        between Python and the engine (``docs/async.md`` has the ratio). The arrays must not move: resizing one in place
        is an error of the caller, which NumPy refuses.
        """
        if collective not in COLLECTIVES:
            raise ValueError(f"no plan for {collective!r}; there are plans for {', '.join(COLLECTIVES)}")
        if "async_op" in kwargs:
            raise TypeError("a plan has no async_op: plan.start() makes the call asynchronously, plan() at once")
        return getattr(self, collective)(*args, **kwargs, async_op=PREPARE)
