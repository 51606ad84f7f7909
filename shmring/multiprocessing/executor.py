"""An executor with the interface of the standard library's, over a pool: calls and results go through rings.

A future is pending while its call waits in the parent, and running once the pool has it. The pool has as many calls as
workers, and one more, so that a worker finds its next call when it has ended one.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, process
from copy import copy
from functools import partial
from typing import Any

from shmring.errors import WorkerLostError
from shmring.multiprocessing import pool
from shmring.multiprocessing.context import default_context

__all__ = ["ExecutorWorkerLostError", "ProcessPoolExecutor"]

EXTRA_CALLS = 1  # in the pool, more than workers


class ExecutorWorkerLostError(WorkerLostError, process.BrokenProcessPool):
    """The worker that had this call was killed or has exited. Unlike after other errors of the second class, the
    executor goes on."""


class ProcessPoolExecutor(process.ProcessPoolExecutor):
    """Runs calls in worker processes, as `concurrent.futures.ProcessPoolExecutor`.

    Parameters
    ----------
    max_workers : int, optional
        The most workers; None: the number of processors. All are forked at the first `submit`; with other start
        methods they are started as calls need them.
    mp_context : optional
        A context of `shmring.multiprocessing`, or of `multiprocessing`; None: that of the start method in use.
    initializer : callable, optional
        Called as ``initializer(*initargs)`` when a worker starts. If workers end in it, again and again, all futures
        fail, and `submit` raises.
    initargs : tuple
        Its arguments.
    max_tasks_per_child : int, optional
        The number of calls after which a worker is replaced; None: never. Not with the start method ``"fork"``.

    Raises
    ------
    TypeError, ValueError
        A parameter is none of these.

    Notes
    -----
    Where a worker is killed or exits, the future whose call it had raises `ExecutorWorkerLostError`, which is a
    `shmring.WorkerLostError` and a `concurrent.futures.process.BrokenProcessPool`. All other futures go on, and the
    worker is replaced. No call runs twice. A call, a result or an exception that cannot be unpickled fails its own
    future. Any thread may use an executor; a process that is forked may not use its parent's.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable | None = None,
        initargs: tuple = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        # Not the constructor of the standard library, which makes queues of its own.
        if max_workers is None:
            max_workers = os.cpu_count() or 1
        elif max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if mp_context is None:
            mp_context = default_context.get_context("spawn" if max_tasks_per_child is not None else None)
        if max_tasks_per_child is not None:
            if not isinstance(max_tasks_per_child, int):
                raise TypeError("max_tasks_per_child must be an integer")
            if max_tasks_per_child <= 0:
                raise ValueError("max_tasks_per_child must be >= 1")
            if mp_context.get_start_method() == "fork":
                raise ValueError("max_tasks_per_child is incompatible with the 'fork' start method: pass an mp_context")
        self._max_workers, self._mp_context = max_workers, mp_context
        if initializer is not None:
            initializer, initargs = initialize, (initializer, initargs)
        make_pool = partial(CallPool, max_workers, initializer, initargs, max_tasks_per_child, mp_context)
        self._calls = Calls(max_workers, make_pool)
        weakref.finalize(self, self._calls.end).atexit = False

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Schedule a call ``fn(*args, **kwargs)``.

        Parameters
        ----------
        fn : callable
            A function that pickles: of a module, not a lambda.
        *args, **kwargs
            Its arguments. Large buffers in them must not be changed before the future is done.

        Returns
        -------
        concurrent.futures.Future

        Raises
        ------
        RuntimeError
            The executor was shut down, the interpreter exits, or this process was forked from the executor's.
        ExecutorWorkerLostError
            Workers have ended before they took a call, again and again.
        """
        return self._calls.submit(fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and end the workers when all futures are done.

        Parameters
        ----------
        wait : bool, default True
            Whether to wait until the workers have ended.
        cancel_futures : bool, default False
            Whether to cancel the futures that are pending.
        """
        self._calls.end(cancel_futures)
        if wait:
            self._calls.join()

    @property
    def _processes(self) -> dict[int, Any]:
        return self._calls.workers()

    @property
    def _broken(self) -> str | bool:
        return str(self._calls.refusal() or "") or False


class Calls:
    """The calls of an executor: those that wait, and a pool that runs the others. They outlive the executor."""

    def __init__(self, nworkers: int, make_pool: Callable[[], CallPool]) -> None:
        self._make_pool = make_pool
        self._pool: CallPool | None = None
        self._lock = threading.RLock()  # a collected executor may end its calls at any line
        self._waiting: deque[tuple] = deque()  # (future, function, args, kwargs)
        self._most_running = nworkers + EXTRA_CALLS
        self._nrunning = 0
        self._is_ended = False
        self._is_drained = threading.Event()  # the pool has all calls that it will have
        self._pid = os.getpid()
        _living.add(self)

    def submit(self, function: Callable, args: tuple, kwargs: dict) -> Future:
        """Schedule a call. Raises as `ProcessPoolExecutor.submit`."""
        with self._lock:
            if (refusal := self.refusal()) is not None:
                raise copy(refusal)
            if self._is_ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._pid != os.getpid():
                raise RuntimeError(f"this executor belongs to process {self._pid}: make one in each process")
            if self._pool is None:
                self._pool = self._make_pool()
            future: Future = Future()
            self._waiting.append((future, function, args, kwargs))
            self._advance(self._pool)
        return future

    def _advance(self, call_pool: CallPool) -> None:
        """Give the pool the calls that it has room for. The caller has the lock."""
        while self._waiting and self._nrunning < self._most_running:
            future, *call = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                self._nrunning += 1
                finish, fail = (partial(end, call_pool, future) for end in (self._finish, self._fail))
                call_pool.run(call, finish, fail, self._nrunning)
        if self._is_ended and not self._waiting:
            call_pool.close()
            self._is_drained.set()

    def _finish(self, call_pool: CallPool, future: Future, outcome: tuple[Any, BaseException | None]) -> None:
        """Called in a thread of the pool: a call has returned, or raised."""
        result, error = outcome
        if error is not None:
            self._fail(call_pool, future, error)
            return
        self._make_room(call_pool)
        future.set_result(result)

    def _fail(self, call_pool: CallPool, future: Future, error: BaseException) -> None:
        """Called in a thread of the pool: a call has raised, was not sent, or was lost."""
        self._make_room(call_pool)
        future.set_exception(error)

    def _make_room(self, call_pool: CallPool) -> None:
        with self._lock:
            self._nrunning -= 1
            self._advance(call_pool)

    def end(self, cancel: bool = False) -> None:
        """Take no more calls; the workers end when all futures are done."""
        if self._pid != os.getpid():
            return
        cancelled: deque[tuple] = deque()
        with self._lock:
            self._is_ended = True
            if cancel:
                cancelled, self._waiting = self._waiting, cancelled
            if self._pool is not None:
                self._advance(self._pool)
        for future, *_ in cancelled:
            future.cancel()
            future.set_running_or_notify_cancel()

    def join(self) -> None:
        """Wait until the workers have ended. After `end`."""
        if self._pool is not None and self._pid == os.getpid():
            self._is_drained.wait()
            self._pool.join()

    def refusal(self) -> WorkerLostError | None:
        """What every call raises, if workers do not start."""
        return None if self._pool is None else self._pool.refusal()

    def workers(self) -> dict[int, Any]:
        """The workers that were started, by their process ids."""
        return {} if self._pool is None else {worker.pid: worker for worker in list(self._pool._pool) if worker.pid}


class CallPool(pool.Pool):
    """The pool of an executor. Its workers start as calls need them, unless they are forked."""

    _wrap_exception = False  # run_call does

    def __init__(self, nworkers: int, initializer: Any, initargs: tuple, max_tasks: int | None, context: Any) -> None:
        self._nstarted = nworkers if context.get_start_method() == "fork" else 1
        super().__init__(nworkers, initializer, initargs, max_tasks, context)

    def _make_tasks(self, nworkers: int) -> CallTasks:
        tasks = CallTasks(nworkers)
        tasks.nwanted = self._nstarted
        return tasks

    def run(self, call: list, finish: Callable, fail: Callable, nrunning: int) -> None:
        """Run a call. The pool has so many calls with this one."""
        self.apply_async(run_call, call, callback=finish, error_callback=fail)
        if self._tasks.nwanted < min(nrunning, self._processes):
            self._tasks.nwanted += 1
            self._change_notifier.put(None)

    def refusal(self) -> WorkerLostError | None:
        """What every call raises, if workers do not start."""
        return self._tasks.refusal


class CallTasks(pool.Tasks):
    """The tasks of an executor's pool."""

    lost_error = ExecutorWorkerLostError
    daemonic = False  # as in the standard library

    @staticmethod
    def called(function: Any, args: tuple) -> Any:
        """The function of the program that a task calls."""
        called = args[0]
        return called.args[0] if isinstance(called, partial) and called.func is process._process_chunk else called

    @staticmethod
    def results_type() -> type[CallResults]:
        """What sends the results of a worker."""
        return CallResults


# ---- the worker ----


class CallResults(pool.Results):
    """The queue of results, in a worker of an executor."""

    caught = BaseException

    @staticmethod
    def unsent(error: BaseException, value: Any) -> Any:
        """What is raised in place of a result that cannot be pickled."""
        return with_traceback(error)


def with_traceback(error: BaseException) -> Any:
    """An error that is unpickled with the text of its traceback as its cause."""
    return process._ExceptionWithTraceback(error, error.__traceback__)  # type: ignore[arg-type]


def run_call(function: Callable, args: tuple, kwargs: dict) -> tuple[Any, Any]:
    """The result of a call, and what it raised; SystemExit does not end the worker."""
    try:
        return function(*args, **kwargs), None
    except BaseException as error:
        return None, with_traceback(error)


def initialize(initializer: Callable, initargs: tuple) -> None:
    """Call the initializer; log its error, as the standard library does, and end the worker."""
    try:
        initializer(*initargs)
    except BaseException:
        logging.getLogger("concurrent.futures").critical("Exception in initializer:", exc_info=True)
        raise SystemExit(1) from None


# ---- the end of the interpreter ----

_living: weakref.WeakSet[Calls] = weakref.WeakSet()


def _finish_all() -> None:
    """Complete all futures before the interpreter exits, as the standard library does."""
    for act in (Calls.end, Calls.join):
        for calls in list(_living):
            act(calls)


threading._register_atexit(_finish_all)
