"""Contexts: those of the standard library, but for what they send through."""

from __future__ import annotations

import multiprocessing
from multiprocessing import context
from typing import Any

from shmring.multiprocessing import connection, queues


class _Rings(context.BaseContext):
    """What goes through rings, in every context."""

    Pipe = staticmethod(connection.Pipe)

    def Queue(self, maxsize: int = 0) -> queues.Queue:
        """A queue, as `multiprocessing.Queue`. Raises as `Pipe`.

        Parameters
        ----------
        maxsize : int, default 0
            How many items may be in it; 0 or less: any number, and `put` never blocks.

        Returns
        -------
        Queue
        """
        return queues.Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> queues.JoinableQueue:
        """A queue with items that are reported done, as `multiprocessing.JoinableQueue`. Raises as `Pipe`.

        Parameters
        ----------
        maxsize : int, default 0
            As in `Queue`.

        Returns
        -------
        JoinableQueue
        """
        return queues.JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self) -> queues.SimpleQueue:
        """A queue without a buffer in the process, as `multiprocessing.SimpleQueue`. Raises as `Pipe`.

        Returns
        -------
        SimpleQueue
        """
        return queues.SimpleQueue(ctx=self.get_context())

    def get_context(self, method: str | None = None) -> context.BaseContext:
        """A context that starts processes by this method; None: this one."""
        if method is None:
            return self
        if method not in _contexts:
            raise ValueError(f"cannot find context for {method!r}")
        return _contexts[method]


class ForkContext(_Rings, context.ForkContext):
    """The context that forks."""


class SpawnContext(_Rings, context.SpawnContext):
    """The context that starts fresh interpreters."""


class ForkServerContext(_Rings, context.ForkServerContext):
    """The context that has a server fork."""


class DefaultContext(_Rings):
    """The context behind the names of the module; its start method is that of `multiprocessing`."""

    Process = multiprocessing.Process
    set_start_method = staticmethod(multiprocessing.set_start_method)
    get_start_method = staticmethod(multiprocessing.get_start_method)
    get_all_start_methods = staticmethod(multiprocessing.get_all_start_methods)

    def get_context(self, method: str | None = None) -> Any:
        """A context of the standard library with queues, pipes and pools that go through rings.

        Parameters
        ----------
        method : {"fork", "spawn", "forkserver"}, optional
            How it starts processes; None: the start method in use.

        Returns
        -------
        multiprocessing.context.BaseContext

        Raises
        ------
        ValueError
            There is no such method here.
        """
        return super().get_context(method or multiprocessing.get_start_method())


_contexts = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}
default_context = DefaultContext()


def __getattr__(name: str) -> Any:
    return getattr(context, name)
