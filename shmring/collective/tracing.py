"""The calls of a communicator that start and stop its timeline."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from shmring.collective.mixin import CommunicatorMixin
from shmring.engine.recording import TRACED_CALLS, Trace


class Timeline:
    """The record of this rank's calls on one communicator, under way; made by `Communicator.trace`.

    A context manager: the recording stops at the end of the block. The file stays.

    Attributes
    ----------
    path : str
        Of the file of this rank.
    """

    def __init__(self, engine: Any, trace: Trace) -> None:
        self._engine = engine
        self._trace: Trace | None = trace
        self.path: str = trace.path

    def stop(self) -> None:
        """Record no further call. May be called again."""
        if self._trace is not None and self._engine.trace is self._trace:
            self._engine.record_in(None)
        self._trace = None

    def __enter__(self) -> Timeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class TraceCalls(CommunicatorMixin):
    """The timelines of `shmring.Communicator`."""

    def trace(self, directory: str | os.PathLike[str], *, calls: int = TRACED_CALLS) -> Timeline:
        """Record each further call of this rank in a file, for ``shmring trace``.

        Parameters
        ----------
        directory : path
            Where the file is made, with a name of its own; all ranks may use the same one. Made if it is not there.
        calls : int
            How many calls the file has room for, at 88 bytes each; the oldest are overwritten. Its size never changes.

        Returns
        -------
        Timeline
            To stop it, or to use in a ``with`` block. It stops a timeline that was under way here.

        Raises
        ------
        ValueError
            A number of calls that is no such.
        ClosedError
            The communicator is closed.
        OSError
            The file cannot be made.

        Notes
        -----
        Not collective: ranks may start and stop at any time, and a call is in the summary of ``shmring trace`` if all
        ranks have recorded it. Does not block. The environment variable ``SHMRING_TRACE`` does it for every
        communicator. It takes two readings of the clock for each call; without it each call tests one pointer.

        Examples
        --------
        >>> with comm.trace("timelines"):  # doctest: +SKIP
        ...     comm.all_reduce(x)
        """
        self.engine.check_usable()
        engine = self.engine
        trace = Trace(os.fspath(directory), engine.facts(), calls)
        engine.record_in(trace)
        return Timeline(engine, trace)
