"""Pools: the standard library's, but the call whose task was lost with its worker raises, and all others go on.

The workers of a pool take their tasks from one queue, so no process knows who has which. In the standard library a call
waits for ever for a task that was lost with its worker. Here tasks are numbered, and each worker has a note in memory
that it shares with the parent, which reads the note of a worker that has ended:

    note              the worker
    0                 runs the initializer
    READY             has run it
    number, TAKES     receives a task, while no other does; the task has that number, or a higher one
    number, HAS       has received it; its result may be sent

What a worker sent before it ended is in the queue of results. So the parent puts a mark into that queue, and a task
whose result has not come before the mark is lost. If the worker ended while it received, the parent first puts an empty
task: when a worker has answered that, all tasks before it have been received, and the notes of living workers and the
results show by whom.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from copy import copy
from multiprocessing import pool
from queue import Full
from typing import Any

from shmring.core.memory.header import CHANNEL, HEADER_NBYTES
from shmring.core.memory.unnamed import create_unnamed
from shmring.errors import WorkerLostError
from shmring.launch.processes import describe_status
from shmring.multiprocessing.connection import dumps, loads
from shmring.multiprocessing.queues import SimpleQueue

__all__ = ["Pool", "ThreadPool"]

ThreadPool = pool.ThreadPool

READY, TAKES, HAS = 1, 2, 3
NEXT, NOTES = 0, 1  # words: a number that the next task has, or a lower one; the first note
WORD_NBYTES = 8
SPARE_NOTES = 8  # a worker that has ended gives its note back before it is replaced; in a terminated pool, later
MOST_FAILED_STARTS = 3  # for each process of a pool
TERMINATED_WITHIN_S = 0.1  # a thread that waits for room looks that often

_NUMBER_AT = 16  # the number is the first object of a pickle: its operation lies within so many bytes
_NUMBER_OPERATION = b"C\x08"  # eight bytes follow


class Pool(pool.Pool):
    """A pool of worker processes, as `multiprocessing.pool.Pool`.

    Parameters
    ----------
    processes : int, optional
        The number of workers; None: of processors.
    initializer : callable, optional
        Called as ``initializer(*initargs)`` when a worker starts. If workers end in it, again and again, all calls of
        the pool raise.
    initargs : tuple
        Its arguments.
    maxtasksperchild : int, optional
        The number of tasks after which a worker is replaced; None: never.
    context : optional
        A context of `shmring.multiprocessing`, or of `multiprocessing`.

    Notes
    -----
    Where a worker is killed or exits, the call whose task it had raises `shmring.errors.WorkerLostError`; ``imap``
    raises it in place of that result and goes on. All other tasks go on, and the worker is replaced. No task runs
    twice. A task, a result or an exception that cannot be unpickled fails its own call.
    """

    def __init__(self, processes=None, initializer=None, initargs=(), maxtasksperchild=None, context=None) -> None:
        self._state = pool.INIT  # for __del__, if the next line raises
        self._tasks = self._make_tasks(max(1, processes or os.cpu_count() or 1))
        self.Process = self._tasks.make_worker  # type: ignore[method-assign]
        self._terminate_pool = self._tasks.terminate
        super().__init__(processes, initializer, initargs, maxtasksperchild, context)
        self._cache.notifier = WhenClosed(self._worker_handler, self._change_notifier)

    def _get_sentinels(self) -> list:
        # Without the queue of results: the thread that looks after the workers has nothing to do at a result.
        return [self._change_notifier._reader]

    def apply(self, func, args=(), kwds={}):  # noqa: B006  the standard library's signature
        """Call ``func(*args, **kwds)`` in a worker and wait for its result, as `multiprocessing.pool.Pool.apply`.

        The calling thread puts the task itself: it has to wait anyway, and the thread that puts the tasks of other
        calls need not be woken.
        """
        self._check_running()
        result: Any = pool.ApplyResult(self, None, None)
        try:
            self._tasks.put((result._job, 0, func, args, kwds))
        except BaseException:
            del self._cache[result._job]
            raise
        return result.get()

    def _map_async(self, func, iterable, mapper, chunksize=None, *callbacks: Any, **options: Any) -> Any:
        self._check_running()
        if chunksize is None:  # by the number of workers: the list of them is empty while all are replaced
            iterable = iterable if hasattr(iterable, "__len__") else list(iterable)
            chunksize = -(-len(iterable) // (4 * self._processes))
        return super()._map_async(func, iterable, mapper, chunksize, *callbacks, **options)

    def _make_tasks(self, nworkers: int) -> Tasks:
        return Tasks(nworkers)

    def _setup_queues(self) -> None:
        self._tasks.inqueue = self._inqueue = SimpleQueue(ctx=self._ctx)
        self._tasks.outqueue = self._outqueue = SimpleQueue(ctx=self._ctx)
        self._quick_put, self._quick_get = self._tasks.put, self._tasks.next_result


class WhenClosed:
    """Wakes the thread that looks after the workers when no call is left, but only in a closed pool, which ends then.

    `Pool.close` wakes the thread, too, after it has changed the state: so it learns of a call that ended before.
    """

    def __init__(self, thread: Any, notifier: Any) -> None:
        self._thread, self._notifier = thread, notifier

    def put(self, item: None) -> None:
        """No call is left."""
        if self._thread._state != pool.RUN:
            self._notifier.put(item)


class Tasks:
    """The tasks of a pool that have been put and whose results have not come, in the parent."""

    lost_error = WorkerLostError
    daemonic = True  # its workers can have no processes of their own

    def __init__(self, nworkers: int) -> None:
        nbytes = HEADER_NBYTES + (NOTES + nworkers + SPARE_NOTES) * WORD_NBYTES
        self.notes = create_unnamed("the notes of a pool", nbytes, kind=CHANNEL)
        self.notes.announce()
        self.nwanted = nworkers  # workers that run, or are started
        self.refusal: WorkerLostError | None = None  # what all calls raise
        self.inqueue: Any = None
        self.outqueue: Any = None
        self._words = words_of(self.notes)
        self._workers: dict[int, Worker] = {}  # by their notes
        self._pending: dict[int, tuple] = {}  # number -> (job, index, function)
        self._lost: dict[int, WorkerLostError] = {}
        self._asked: dict[int, threading.Event] = {}  # an empty task -> set when a worker has taken it
        self._putting = threading.Lock()  # the numbers in the queue ascend
        self._nput = 0
        self._nfailed_starts = 0
        self._is_terminated = False

    @staticmethod
    def called(function: Any, args: tuple) -> Any:
        """The function of the program that a task calls."""
        return args[0][0] if function in MAPS else function

    @staticmethod
    def results_type() -> type[Results]:
        """What sends the results of a worker."""
        return Results

    # ---- tasks and results ----

    def put(self, task: tuple | None) -> None:
        """Put a task of the standard library's pool, or its sentinel."""
        if task is None:
            self.inqueue.put(None)
            return
        if self.refusal is not None:
            raise copy(self.refusal)  # each has a traceback
        job, index, function, args, kwds = task
        with self._putting:
            number = self._nput
            self._pending[number] = job, index, self.called(function, args)
            try:
                self.inqueue.put((to_bytes(number), function, args, kwds))
            except BaseException:
                del self._pending[number]
                raise
            self._nput += 1

    def next_result(self) -> tuple | None:
        """Wait for the next result, in the form of the standard library's pool; None: its sentinel has come."""
        while True:
            content = self.outqueue._reader.take(None)
            number = number_in(content)
            outcome: tuple[bool, Any]
            if number is None:
                mark = loads(content)
                if mark is None:
                    return None
                (number,) = mark
                outcome = False, self._lost.pop(number, None)  # None: an earlier mark has ended the call
            else:
                try:
                    outcome = loads(content)[1]
                except BaseException as error:  # a result may raise SystemExit, and this thread goes on
                    outcome = False, error
            if (asked := self._asked.pop(number, None)) is not None:
                asked.set()
            if (put := self._pending.pop(number, None)) is not None:
                return put[0], put[1], outcome

    def terminate(self, *parts: Any) -> None:
        """Terminate the pool, and end the threads that look for lost tasks. Called once."""
        self._is_terminated = True
        for asked in list(self._asked.values()):
            asked.set()
        pool.Pool._terminate_pool(*parts)

    # ---- workers ----

    def make_worker(self, ctx: Any, *args: Any, target: Any = None, **kwds: Any) -> Any:
        """A process that has not started, in place of the one that the standard library's pool would make."""
        if target is not pool.worker:
            return ctx.Process(*args, target=target, **kwds)
        if not self.is_short():
            return NoWorker(self)
        note = next(i for i in range(NOTES, len(self._words)) if i not in self._workers)
        self._words[note] = 0
        known = kwds.pop("args")
        process = ctx.Process(*args, target=work, args=(self.notes, note, self.results_type(), *known), **kwds)
        self._workers[note] = Worker(process, self, note)
        return self._workers[note]

    def is_short(self) -> bool:
        """Whether to start a worker."""
        return self.refusal is None and len(self._workers) < self.nwanted

    def note_end(self, worker: Worker) -> None:
        """Find the task that an ended worker had, if any. Called in the pool's thread that replaces it."""
        if self._workers.get(worker.note) is not worker:  # told before
            return
        note: int = self._words[worker.note]
        del self._workers[worker.note]
        if getattr(threading.current_thread(), "_state", pool.TERMINATE) == pool.TERMINATE:
            return  # nobody waits for results any longer
        self._count_failed_starts(worker, note)
        number, state = note >> 2, note & 3
        if state == HAS:
            self._lose(number, worker)
        elif state == TAKES and any(one >= number for one in [*self._pending, *self._asked]):
            threading.Thread(target=self._find_out, args=(number, worker), daemon=True).start()

    def _find_out(self, first: int, worker: Any) -> None:
        """Lose the task that a worker had received when it ended, if any: this one, or a later one."""
        asked, is_put = threading.Event(), False
        with self._putting, suppress(OSError, ValueError):
            empty, self._nput = self._nput, self._nput + 1
            self._asked[empty] = asked
            content = dumps((to_bytes(empty), None, (), {}))
            while not is_put and not self._is_terminated:
                with suppress(Full):
                    self.inqueue._writer._outgoing.send(content, TERMINATED_WITHIN_S)
                    is_put = True
        if is_put:
            asked.wait()
        if not is_put or self._is_terminated:
            return
        for number in range(first, empty):
            if number << 2 | HAS not in (self._words[note] for note in list(self._workers)):
                self._lose(number, worker)

    def _lose(self, number: int, worker: Any) -> None:
        """Have the call of this task raise, unless its result has been sent. A lost empty task was received, too."""
        if (asked := self._asked.pop(number, None)) is not None:
            asked.set()
        pending = self._pending.get(number)
        if pending is None:
            return
        _, index, function = pending
        name = name_of(function)
        error = self.lost_error(
            f"the worker of this pool that had this task, a call of {name}{f' (number {index})' if index else ''}, "
            f"{describe_status(worker.exitcode)} (pid {worker.pid}); whether it completed the task is not known",
            worker.pid,
            worker.exitcode,
            name,
            index,
        )
        self._put_mark(number, error)

    def _put_mark(self, number: int, error: WorkerLostError) -> None:
        """Have the call of this task raise unless its result comes before the mark. A second mark changes nothing."""
        self._lost[number] = error
        with suppress(OSError, ValueError):
            self.outqueue.put((number,))

    def _count_failed_starts(self, worker: Any, note: int) -> None:
        """Refuse all tasks when workers end as they start, again and again."""
        self._nfailed_starts = self._nfailed_starts + 1 if note == 0 else 0
        if self._nfailed_starts < MOST_FAILED_STARTS * self.nwanted or self.refusal:
            return
        self.refusal = self.lost_error(
            f"{self._nfailed_starts} workers of this pool in a row ended before they took a task, the last one "
            f"{describe_status(worker.exitcode)} (pid {worker.pid}): does the initializer fail, or the import of the "
            "main module? No more workers are started",
            worker.pid,
            worker.exitcode,
        )
        for number in list(self._pending):
            self._put_mark(number, copy(self.refusal))


MAPS = (pool.mapstar, pool.starmapstar)


def name_of(function: Any) -> str:
    """The name of a function, for messages."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


# ---- numbers and notes ----


def to_bytes(number: int) -> bytes:
    """A number as the first object of a pickle."""
    return number.to_bytes(8, "little")


def number_in(content: Any) -> int | None:
    """The number of a task or of its result that is still pickled; None if it has none."""
    start = bytes(memoryview(content if isinstance(content, bytes) else content.stream)[: _NUMBER_AT + 10])
    at = start.find(_NUMBER_OPERATION, 0, _NUMBER_AT)
    return None if at < 0 else int.from_bytes(start[at + 2 : at + 10], "little")


def words_of(notes: Any) -> memoryview:
    """The words of shared notes."""
    return memoryview(notes.mapping)[HEADER_NBYTES:].cast("B").cast("Q")


# ---- the worker ----


class Taking:
    """The queue of tasks, in a worker, and what the worker writes into its note."""

    def __init__(self, inqueue: Any, results: Results, words: memoryview, note: int) -> None:
        self._inqueue, self._results, self._words, self._note = inqueue, results, words, note

    def get(self) -> tuple | None:
        """The next task, in the form of the standard library's worker."""
        while True:
            if self._words[self._note] == 0:
                self._words[self._note] = READY
            with self._inqueue._rlock:
                self._words[self._note] = self._words[NEXT] << 2 | TAKES
                content = self._inqueue._reader.take(None)
                number = number_in(content)
                if number is None:
                    self._words[self._note] = READY
                    return None
                self._words[self._note] = number << 2 | HAS
                self._words[NEXT] = number + 1
            self._results.number = number
            try:
                _, function, args, kwds = loads(content)
            except Exception as error:
                self._results.put((None, None, (False, error)))
                continue
            if function is None:
                self._results.put((None, None, None))
                continue
            return None, None, function, args, kwds


class Results:
    """The queue of results, in a worker."""

    caught: type[BaseException] = Exception  # if a result that is pickled raises it, the worker goes on

    def __init__(self, outqueue: Any) -> None:
        self._outqueue = outqueue
        self.number = 0

    def put(self, result: tuple) -> None:
        """Put what the standard library's worker has computed, or the error of pickling it."""
        number, outcome = to_bytes(self.number), result[2]
        try:
            self._outqueue.put((number, outcome))
        except BrokenPipeError:
            raise SystemExit from None  # the parent is gone
        except self.caught as error:
            self._outqueue.put((number, (False, self.unsent(error, outcome[1]))))

    @staticmethod
    def unsent(error: BaseException, value: Any) -> Any:
        """What is raised in place of a result that cannot be pickled."""
        return pool.MaybeEncodingError(error, value)


def work(notes: Any, note: int, results_type: type[Results], inqueue: Any, outqueue: Any, *rest: Any) -> None:
    """The life of a worker: the standard library's."""
    inqueue._writer.close()
    outqueue._reader.close()
    results = results_type(outqueue)
    pool.worker(Taking(inqueue, results, words_of(notes), note), results, *rest)


class Worker:
    """A process of the pool's context that tells the tasks of its pool when the pool has found that it has ended."""

    def __init__(self, process: Any, tasks: Tasks, note: int) -> None:
        self._process, self._tasks, self.note = process, tasks, note
        self.name, self.daemon = process.name, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def start(self) -> None:
        """Start it, as `multiprocessing.Process.start`."""
        self._process.name, self._process.daemon = self.name, self.daemon and self._tasks.daemonic
        self._process.start()

    def join(self, *timeout: float | None) -> None:
        """Wait until the process has ended, as `multiprocessing.Process.join`."""
        self._process.join(*timeout)
        if self._process.exitcode is not None:
            self._tasks.note_end(self)


class NoWorker:
    """In the place of a worker that is not started: not yet, or not any more."""

    pid = 0
    name = "no process"
    daemon = True

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    @property
    def exitcode(self) -> int | None:
        """Not None when a worker is to take its place."""
        return 0 if self._tasks.is_short() else None

    def start(self) -> None:
        """Do nothing."""

    terminate = join = start

    def is_alive(self) -> bool:
        """Whether it runs: never."""
        return False


def __getattr__(name: str) -> Any:
    return getattr(pool, name)
