"""Ranks as threads of one process: `spawn` with ``threads=True``, in a Python without the GIL.

A thread cannot be ended from outside. What ends ranks here is the abort of their communicators.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from shmring.communicator import Communicator
from shmring.config import configure
from shmring.core.base.followed import is_followed
from shmring.core.memory.sweep import sweep
from shmring.core.sync.turn import IS_FREE_THREADED
from shmring.errors import BrokenError, RankFailedError
from shmring.launch.init import init as init_communicator
from shmring.launch.processes import LONGEST_WAIT_S
from shmring.launch.report import leave_after
from shmring.launch.supervisor import Rank, Supervisor

FunctionCall = tuple[Callable[..., Any], tuple, dict[str, Any], dict[str, Any]]


def check_free_threaded() -> None:
    """Raise `RuntimeError` where one rank at a time would run."""
    if not IS_FREE_THREADED:
        raise RuntimeError(
            "threads=True needs a free-threaded Python (3.14t): this one has the GIL, with which one rank at a time "
            "would run. Leave threads=True out: ranks are then processes"
        )
    if sys._is_gil_enabled():  # type: ignore[attr-defined]
        raise RuntimeError(
            "threads=True needs the GIL disabled: a module that was imported here has enabled it (Python has warned "
            "which), or PYTHON_GIL=1 or -X gil=1 was given. Run with PYTHON_GIL=0, or leave threads=True out"
        )


def run_in_threads(call: FunctionCall, size: int, timeout: float | None, deadline: float, grace: float) -> list[Any]:
    """Run the ranks of `shmring.spawn` with ``threads=True``, after its checks."""
    settings = {name: value for name, value in call[3].items() if name != "rendezvous_timeout"}
    configure(**settings)  # here: other ranks would wait for one that its settings keep from joining
    threads = _Threads(size, call, grace)
    try:
        threads.supervise(timeout, deadline)
    finally:
        sweep(threads.session)
    if failed := threads.failed:
        raise failed[0].failure()
    return [rank.result for rank in threads.ranks]


class _Threads(Supervisor["_Rank"]):
    """The ranks of one call of `spawn`."""

    def __init__(self, size: int, call: FunctionCall, grace: float) -> None:
        super().__init__(size, grace)
        self.session = secrets.token_hex(8)
        self._call = call
        self._ended: SimpleQueue[None] = SimpleQueue()

    def make(self, number: int) -> _Rank:
        return _Rank(number, self.size, self.session, self._call, self._ended)

    def look(self, ranks: Sequence[_Rank], seconds: float) -> None:
        with contextlib.suppress(Empty):
            self._ended.get(timeout=min(seconds, LONGEST_WAIT_S))

    def end_by_force(self) -> None:
        if left := self.running:
            warnings.warn(
                f"ranks {', '.join(str(rank.number) for rank in left)} are still running: a thread cannot be ended. "
                "They end at their next call of their communicator, or with this process",
                RuntimeWarning,
                stacklevel=6,
            )


class _Rank(Rank):
    """One thread: running, or ended with a result or an error."""

    def __init__(self, number: int, size: int, session: str, call: FunctionCall, ended: SimpleQueue[None]) -> None:
        super().__init__(number)
        self.result: Any = None
        self._error: BaseException | None = None
        self._comm: Communicator | None = None
        # A daemon: the interpreter need not wait for a rank that does not end.
        self._thread = threading.Thread(
            target=self._run, args=(size, session, call, ended), name=f"shmring rank {number}", daemon=True
        )

    def start(self) -> None:
        self.running = True
        try:
            self._thread.start()
        except BaseException:
            self.running = self._thread.is_alive()
            raise

    def stop(self, by_force: bool) -> None:
        """Make all current and future calls of its communicator raise; no effect while it waits for the other ranks."""
        if self._comm is not None:
            with contextlib.suppress(BrokenError):
                self._comm.abort(f"rank {self.number} was ended by spawn")

    def close(self) -> None:
        """Wait for the end of the thread, if it has only that left to do."""
        if self._thread.ident is not None and not self.running:
            self._thread.join()

    def failure(self) -> BaseException:
        """The error that it raised."""
        error = self._error
        if isinstance(error, SystemExit):
            status = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
            failed = RankFailedError(f"rank {self.number}: left with status {status}", self.number, status)
            failed.__cause__ = error
            return failed
        assert error is not None
        if hasattr(error, "add_note"):
            error.add_note(f"raised by rank {self.number}")
        return error

    def _run(self, size: int, session: str, call: FunctionCall, ended: SimpleQueue[None]) -> None:
        fn, args, kwargs, options = call
        try:
            self._comm = init_communicator(rank=self.number, size=size, session=session, **options)
            self.result = fn(self._comm, *args, **kwargs)
            self._comm.close()
        except BaseException as error:  # of any kind: `failure` raises it
            self._error = error
            self.fail(self.is_ended_here or is_followed(error))
            if self._comm is not None:
                leave_after(error, self._comm, self.number)
        self.running = False
        ended.put(None)
