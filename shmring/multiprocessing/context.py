"""Contexts: the standard library's, with queues, pipes and pools over rings in shared memory."""

from __future__ import annotations

import multiprocessing
from multiprocessing import context
from typing import Any

from shmring.multiprocessing import connection, pool, processes, queues


class _Rings(context.BaseContext):
    """The calls that every context makes over rings."""

    Pipe = staticmethod(connection.Pipe)

    def Queue(self, maxsize: int = 0) -> queues.Queue:
        """A queue, as `multiprocessing.Queue`. Raises as `Pipe`.

        Parameters
        ----------
        maxsize : int, default 0
            The most items in the queue; 0 or less: any number, and `put` never blocks.

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

    def Pool(
        self,
        processes: int | None = None,
        initializer: Any = None,
        initargs: tuple = (),
        maxtasksperchild: int | None = None,
    ) -> pool.Pool:
        """A pool of worker processes. Parameters as of `shmring.multiprocessing.pool.Pool`.

        Returns
        -------
        Pool
        """
        return pool.Pool(processes, initializer, initargs, maxtasksperchild, self.get_context())

    def get_context(self, method: str | None = None) -> context.BaseContext:
        """The context that starts processes by this method; None: this context."""
        if method is None:
            return self
        if method not in _contexts:
            raise ValueError(f"cannot find context for {method!r}")
        return _contexts[method]


class ForkContext(_Rings, context.ForkContext):
    """The context that forks."""


class SpawnContext(_Rings, context.SpawnContext):
    """The context that starts fresh interpreters."""

    Process = processes.SpawnProcess


class ForkServerContext(_Rings, context.ForkServerContext):
    """The context that has a server fork."""

    Process = processes.ForkServerProcess


class DefaultContext(_Rings):
    """The context behind the names of the module; its start method is that of `multiprocessing`."""

    Process = processes.Process
    set_start_method = staticmethod(multiprocessing.set_start_method)
    get_start_method = staticmethod(multiprocessing.get_start_method)
    get_all_start_methods = staticmethod(multiprocessing.get_all_start_methods)

    def get_context(self, method: str | None = None) -> Any:
        """A context of the standard library with queues, pipes and pools that go through rings.

        Parameters
        ----------
        method : {"fork", "spawn", "forkserver"}, optional
            How the context starts processes; None: the start method in use.

        Returns
        -------
        multiprocessing.context.BaseContext

        Raises
        ------
        ValueError
            This platform has no such method.
        """
        return super().get_context(method or multiprocessing.get_start_method())


_contexts = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}
default_context = DefaultContext()


def __getattr__(name: str) -> Any:
    return getattr(context, name)
