"""Asynchronous work: the handle of a call that the progress thread of its communicator makes in the background."""

from __future__ import annotations

import contextlib
from _thread import allocate_lock
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from shmring.collectives.calls.progress_thread import ProgressThread, await_release, progress_of
from shmring.collectives.engine.kinds import explain
from shmring.core.base.future import Future
from shmring.core.base.program_line import on_behalf_of, submitting_line
from shmring.core.base.timeouts import timeout_ns
from shmring.core.base.unraisable import report_unraisable
from shmring.errors import ClosedError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", covariant=True, default=Any)


class Work(Future["T"]):
    """A collective in progress: submitted, and made in the background while the caller does something else.

    Until it is done, write to none of its arrays and do not read its results. The arrays are kept alive. In asyncio,
    await it: ``result = await work``. Any thread may use it.

    A program may drop it. An error of the operation then shows in the next call on the communicator. It cannot be
    cancelled, since the other ranks need the operation: ``comm.abort()`` ends it on all of them.
    """

    __slots__ = ("_call", "_callbacks", "_done", "_error", "_label", "_progress", "_result", "_submitted_at", "_wakers")

    def __new__(cls, progress: ProgressThread, call: Callable[[], T]) -> Work[T]:
        if not isinstance(progress, ProgressThread):
            raise TypeError("Work is made by calls with async_op=True, not by its constructor")
        return super().__new__(cls)

    def __init__(self, progress: ProgressThread, call: Callable[[], T]) -> None:
        self._progress = progress
        self._call: Callable[[], T] | None = call
        self._submitted_at = submitting_line()
        self._label: int | str = getattr(call, "label", "a call")
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[], None]] = []

    def hasten(self) -> None:
        """Make the call on this thread, after everything before it, unless another thread is making asynchronous calls.

        For a caller that would only wait: saves the change of threads. Ctrl-C then interrupts the operation and not the
        wait for it, so the communicator is broken.
        """
        self._progress.run_until(self)

    def done(self) -> bool:
        """Whether it has succeeded or failed. Does not block."""
        return self._done

    def add_done_callback(self, fn: Callable[[Work[T]], Any]) -> None:
        """Call ``fn(work)`` once this, and everything submitted so far, is done.

        Parameters
        ----------
        fn : callable
            Called at once, on this thread, if nothing is pending on the communicator; else by the communicator's
            thread. It may make calls on the communicator, which take the place in the order of calls where the callback
            is added. An exception of it is reported by `sys.unraisablehook` and has no other effect.
        """
        if not callable(fn):
            raise TypeError(f"add_done_callback takes a callable, not {type(fn).__name__}")
        self._progress.run_after(self, partial(_call_back, fn, self))

    @property
    def name(self) -> str:
        """The operation in words, e.g. ``all_reduce(sum, float32 x 1024)``."""
        return self._label if isinstance(self._label, str) else explain(self._label)

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio  # its import takes time, and few programs use it

        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def finish() -> None:
            if not future.done():  # the awaiting task may have been cancelled
                future.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(finish)

        if self._wake_with(wake):
            yield from future
        return self.wait()

    def __repr__(self) -> str:
        state = "pending" if not self._done else f"failed: {self._error!r}" if self._error is not None else "done"
        return f"<shmring.Work {self.name} {state}>"

    # ---- for waiting threads ----

    def _settle(self, timeout: float | None) -> BaseException | None:
        limit_ns = timeout_ns(timeout)
        if not self._done and self._progress.is_own_thread():
            self._progress.run_nested(self)
        elif not self._done:
            finished = allocate_lock()
            finished.acquire()
            if self._wake_with(finished.release) and not await_release(finished, limit_ns):
                where = f"{self.name} on {self._progress.name!r}"
                raise TimeoutError(f"{where} is not done after {timeout} s; it continues")
        return self._error

    def _value(self) -> T:
        return self._result

    def _wake_with(self, waker: Callable[[], object]) -> bool:
        """Have ``waker`` called when this is done; False if it is done already."""
        if not self._done and self._progress.is_inherited:
            raise ClosedError(f"{self.name} on {self._progress.name!r}: belongs to the parent process")
        return self._progress.turn.run(self._add_waker, waker)

    def _add_waker(self, waker: Callable[[], object]) -> bool:
        if not self._done:
            self._wakers.append(waker)
        return not self._done

    # ---- for the thread that runs it ----

    def _run(self) -> None:
        """Make the call, wake the waiters, and run the callbacks next."""
        assert self._call is not None
        try:
            with on_behalf_of(self._submitted_at):
                self._result = self._call()
        except BaseException as error:  # any: `wait` raises it
            self._error = error
        self._call = None  # and with it the arrays
        for waker in self._progress.turn.run(self._mark_done):
            waker()
        self._progress.run_next(self._callbacks)

    def _mark_done(self) -> list[Callable[[], object]]:
        self._done = True
        return self._wakers

    def _attach(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` right after this."""
        self._callbacks.append(callback)


def submit(engine, call: Callable[[], T]) -> Work[T]:
    """Make ``call()`` in the background, after everything that was submitted to this engine before.

    Parameters
    ----------
    engine : Engine
    call : callable
        Makes the call and returns its result. ``call.label`` is its name, or the signature from which that is made.

    Returns
    -------
    Work
    """
    progress = progress_of(engine)
    work = Work(progress, call)
    progress.append(work._run)
    return work


def _call_back(fn: Callable[[Work], Any], work: Work) -> None:
    try:
        fn(work)
    except BaseException as error:
        report_unraisable(error, fn)
