"""The calls of a communicator that start and stop its timeline."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from shmring.collectives.engine.recording import Trace


class Timeline:
    """The record of this rank's calls on one communicator, under way; made by `Communicator.trace`.

    A context manager: the recording stops at the end of the block. The file stays.

    Attributes
    ----------
    path : str
        The path of this rank's file.
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


def trace(comm: Any, directory: str | os.PathLike[str], calls: int) -> Timeline:
    """See `Communicator.trace`."""
    engine = comm._engine
    engine.check_usable()
    trace = Trace(os.fspath(directory), engine.facts(), calls)
    engine.record_in(trace)
    return Timeline(engine, trace)
