"""Asynchronous work: calls that one thread of each communicator makes in the background, in the order of submission.

The ranks of a communicator must all make the same calls in the same order, so everything here is about order: it must
follow from the program alone, and not from how quick a thread was. Three rules see to that.

- Work is done in the order in which it was submitted.
- A call that is made at once goes after all that was submitted before it (`Progress.let_pass`).
- A callback has its place in that order, too: where `Work.add_done_callback` stands in the program. So whatever calls
  it makes come after those submitted before that line, and before those made after it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from threading import get_ident
from typing import Any

from shmring._runtime import report_unraisable
from shmring.engine.lifecycle import Stage, in_child, track
from shmring.engine.signature import explain
from shmring.errors import ClosedError

LAST_CALLBACK_S = 1.0  # how long the end of the program waits for a callback that is running


class Work:
    """A collective under way: submitted, and made in the background while the caller does something else.

    The arrays belong to the operation until it is done: write to none of them, and do not read its results. They are
    kept alive. Await it in asyncio: ``result = await work``. Any thread may use it.

    A program that drops it loses nothing but the news of an error, which the next call on the communicator raises, too.
    """

    __slots__ = ("_call", "_callbacks", "_done", "_error", "_label", "_progress", "_result", "_wakers")

    def __init__(self, progress: Progress, call: Callable[[], Any]) -> None:
        self._progress = progress
        self._call: Callable[[], Any] | None = call
        self._label: int | str = getattr(call, "label", "nothing")
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[], None]] = []

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it is done and return its result.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever. That of the operation itself was given when it was submitted, and counts
            from its turn.

        Returns
        -------
        array or None
            What the same call without ``async_op`` returns.

        Raises
        ------
        TimeoutError
            It is not done yet. It goes on, and may be waited for again, as after a KeyboardInterrupt.
        RuntimeError
            It can only be done after the callback in which this is called.
        ClosedError
            This process inherited it through fork.
        Exception
            What the operation raised.
        """
        self._await(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def result(self, timeout: float | None = None) -> Any:
        """The same as `wait`, under the name that futures have it by.

        Parameters
        ----------
        timeout : float, optional
            As in `wait`.

        Returns
        -------
        array or None
        """
        return self.wait(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the operation raised, None if it succeeded; waits until it is done.

        Parameters
        ----------
        timeout : float, optional
            As in `wait`, which has the errors of waiting, too.

        Returns
        -------
        BaseException or None
        """
        self._await(timeout)
        return self._error

    def hasten(self) -> None:
        """Do it in this thread, after what comes before it, unless somebody is at it already.

        For a caller who would only wait for it: saves the change of threads. Ctrl-C then interrupts the operation, not
        the wait for it, so that the communicator is broken.
        """
        self._progress.do_instead(self)

    def done(self) -> bool:
        """Whether it has succeeded or failed. Does not block."""
        return self._done

    def cancel(self) -> bool:
        """False: work cannot be cancelled, for the other ranks count on it. ``comm.abort()`` ends it on all of them."""
        return False

    def add_done_callback(self, fn: Callable[[Work], Any]) -> None:
        """Have ``fn(work)`` called once this, and all that has been submitted so far, is done.

        Parameters
        ----------
        fn : callable
            Called at once, in this thread, if nothing is pending on the communicator; else by the communicator's
            thread. It may make calls on the communicator, which take their place in the order of calls here, where the
            callback is added. What it raises is reported by `sys.unraisablehook` and changes nothing.
        """
        self._progress.call_after(self, partial(_call_back, fn, self))

    @property
    def name(self) -> str:
        """The operation in words, e.g. ``all_reduce(sum, float32 x 1024)``."""
        return self._label if isinstance(self._label, str) else explain(self._label)

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio  # a program that has none does without its weight

        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def arrive() -> None:
            if not future.done():  # the awaiting task may have been cancelled
                future.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(arrive)

        if self._wake_with(wake):
            yield from future
        return self.wait()

    def __repr__(self) -> str:
        state = "pending" if not self._done else f"failed: {self._error!r}" if self._error is not None else "done"
        return f"<shmring.Work {self.name} {state}>"

    def _await(self, timeout: float | None) -> None:
        if self._done:
            return
        if self._progress.is_own_thread():
            self._progress.do_before(self)
            return
        arrived = allocate_lock()
        arrived.acquire()
        if self._wake_with(arrived.release) and not arrived.acquire(timeout=_lock_timeout(timeout)):
            raise TimeoutError(f"{self.name} on {self._progress.name!r} is not done after {timeout} s; it goes on")

    def _wake_with(self, waker: Callable[[], object]) -> bool:
        """Have ``waker`` called when it is done; False if it is already."""
        with self._progress.lock:
            if not self._done:
                if self._progress.is_inherited:
                    raise ClosedError(f"{self.name} on {self._progress.name!r}: belongs to the parent process")
                self._wakers.append(waker)
            return not self._done

    def _run(self) -> None:
        """Make the call. By the communicator's thread."""
        assert self._call is not None
        try:
            self._result = self._call()
        except BaseException as error:  # the waiter's, whatever it is
            self._error = error
        self._call = None  # and with it the arrays
        with self._progress.lock:
            self._done = True
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()
        self._progress.do_next(self._callbacks)


class Progress:
    """The thread that does a communicator's asynchronous work, and the line of what it has to do.

    It holds the engine by its pending items alone: a communicator that is dropped while nothing is pending goes away,
    and its thread with it.
    """

    def __init__(self, engine) -> None:
        self.name: str = engine.name
        self.is_inherited = False
        self._make_lock()
        self._engine = weakref.ref(engine, self.retire)
        self._line: deque[Callable[[], None]] = deque()
        self._inner: deque[Callable[[], None]] = deque()  # what the running item has submitted; it goes first
        self._busy = False
        self._retired = False
        self._ended = False
        self._thread: threading.Thread | None = None
        self._runner: int | None = None  # the thread that does an item: ours, or one that would wait for it
        track(self, Stage.PROGRESS)

    # ---- any thread ----

    def submit(self, call: Callable[[], Any]) -> Work:
        """Put ``call()`` at the end of the line."""
        work = Work(self, call)
        self._append(work._run)
        return work

    def let_pass(self, timeout: float | None = None) -> None:
        """Return once all that was submitted before is done, so that a call made now keeps its place."""
        if self.is_own_thread():
            self.do_before()
            return
        with self.lock:
            if self.is_inherited or self._ended:
                return
            mark = self.submit(_nothing)
        mark.exception(timeout)

    def call_after(self, work: Work, item: Callable[[], None]) -> None:
        """Run ``item`` here in the order of calls, but not before ``work`` is done; at once if nothing is pending."""
        with self.lock:
            if self._busy and not (self.is_own_thread() and work._done and not self._inner):
                self._append(partial(self._attach, work, item))
                return
        item()

    def is_own_thread(self) -> bool:
        """Whether the caller is a callback, or the work itself."""
        return self._runner == get_ident() and not self.is_inherited

    def do_instead(self, work: Work) -> None:
        """Do what is first in line, up to ``work``, in the caller's thread; unless somebody is at it."""
        while not (work._done or self.is_own_thread()):
            try:
                with self.lock:
                    if self.is_inherited or self._runner is not None or not self._line:
                        return
                    item = self._take()
                self._do(item, self._line)
            except BaseException:  # a signal handler's, between two lines: what was taken may not have been done
                self.abort("interrupted while doing asynchronous work")
                raise
            finally:
                self._rest()

    def close(self, timeout: float | None) -> None:
        """Wait for what is pending, but abort it after ``timeout`` seconds. The engine is closed next."""
        try:
            self.let_pass(timeout)
        except TimeoutError:
            self.abort(f"closed after waiting {timeout} s for pending work")

    def abort(self, reason: str) -> None:
        """Fail what is pending, on all ranks."""
        engine = self._engine()
        if engine is not None and self._busy and not (self.is_inherited or engine.is_closed or engine.is_broken):
            engine.abort(reason)

    def leave_at_exit(self) -> None:
        """At the end of the interpreter: a program that did not wait for its work cannot be waited for.

        Soon the interpreter ends this thread wherever it is, be it with the lock in its hands. So it is to end by
        itself before; and if a callback keeps it from that, at least nobody may ask for the lock any more.
        """
        engine = self._engine()
        if self.is_inherited or engine is None:
            return
        self.abort("exited while asynchronous work was pending")
        self._engine = weakref.ref(engine)  # without `retire`, which asks for it
        self.retire()
        if self._thread is not None:
            self._thread.join(LAST_CALLBACK_S)

    def disown(self) -> None:
        """After fork, in the child: there is no thread, and the lock is as some thread of the parent held it."""
        self.is_inherited = True
        self._make_lock()

    def _make_lock(self) -> None:
        # Re-entrant: a signal handler or a finalizer may submit, too. Entered as a lock, never as a condition: leaving
        # a condition is Python code, in which a signal handler may raise before the lock is let go, and it never is.
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)

    def _append(self, item: Callable[[], None]) -> None:
        if self.is_inherited:
            raise ClosedError(f"{self.name}: belongs to the parent process")
        with self.lock:
            if self._ended:
                raise ClosedError(f"{self.name}: is closed")
            if self._thread is None:
                self._start()
            if self.is_own_thread():
                self._inner.append(item)
                return
            if not self._busy:
                self._set_busy(True)
            self._line.append(item)
            self.news.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"shmring {self.name}", daemon=True)
        try:
            thread.start()
        except KeyError as error:  # the interpreter's own, when a signal handler raises inside of start()
            raise error.__context__ or error from None
        self._thread = thread

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        engine = self._engine()
        if engine is not None:
            engine.has_backlog = busy

    def retire(self, _=None) -> None:
        """The thread may end once the line is empty: the engine is closed, or gone."""
        with self.lock:
            self._retired = True
            self.news.notify()

    # ---- the communicator's own thread ----

    def _serve(self) -> None:
        with self.lock:
            if self._thread is None:  # a signal handler has raised in `_start`, after this thread had begun
                self._thread = threading.current_thread()
            if self._thread is not threading.current_thread():  # and then another one was started
                return
        while True:
            with self.lock:
                while self._runner is not None or not (self._line or self._retired):
                    self.news.wait()
                if not self._line:
                    self._ended = True
                    return
                item = self._take()
            try:
                self._do(item, self._line)
            finally:
                self._rest()
            del item  # it may be all that keeps the engine

    def _take(self) -> Callable[[], None]:
        """The first item of the line, to be run by the caller, who has the lock."""
        self._runner = get_ident()
        return self._line.popleft()

    def _rest(self) -> None:
        """The item that the caller took is done; if it took any."""
        with self.lock:
            if self._runner == get_ident():
                self._runner = None
                if not self._line:
                    self._set_busy(False)
                self.news.notify()

    def _do(self, item: Callable[[], None], line: deque[Callable[[], None]]) -> None:
        """Run one item; what it submits comes first in the line from which it was taken."""
        outer, self._inner = self._inner, deque()
        item()
        with self.lock:
            line.extendleft(reversed(self._inner))
        self._inner = outer

    def do_before(self, work: Work | None = None) -> None:
        """Do what the running callback has submitted, until ``work`` is done; by its own hands, as nobody else will."""
        while self._inner and not (work is not None and work._done):
            self._do(self._inner.popleft(), self._inner)
        if work is not None and not work._done:
            raise RuntimeError(f"{self.name}: {work.name} comes after this callback, which waits for it")

    def do_next(self, items: list[Callable[[], None]]) -> None:
        """Run these after the running item, before all others."""
        self._inner.extend(items)

    def _attach(self, work: Work, item: Callable[[], None]) -> None:
        """Run ``item``, whose turn it is; or after ``work``, if that comes later."""
        if work._done:
            self.do_next([item])
        else:
            work._callbacks.append(item)


def submit(engine, call: Callable[[], Any]) -> Work:
    """Have ``call()`` made in the background, after all that was submitted to this engine before.

    Parameters
    ----------
    engine : Engine
    call : callable
        Makes the call and returns its result. ``call.label`` is its name, or the signature from which that is made.

    Returns
    -------
    Work
    """
    with _making:
        if engine.progress is None:
            engine.progress = Progress(engine)
    return engine.progress.submit(call)


def _nothing() -> None:
    """The call of a work that only marks a place in the line."""


def _lock_timeout(timeout: float | None) -> float:
    return -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)


def _call_back(fn: Callable[[Work], Any], work: Work) -> None:
    try:
        fn(work)
    except BaseException as error:
        report_unraisable(error, fn)


_making = threading.Lock()


@in_child
def _renew_lock() -> None:
    global _making
    _making = threading.Lock()
