"""`spawn`: run a Python function in several processes, each with its rank of one communicator.

`shmring.launch.run` does the same for commands. Nothing here blocks on a rank: reports are read as they come, ends
come from the kernel, and signal handlers run where a raise does no harm (`shmring.launch.signals`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar

from shmring.collectives.bootstrap.environment import rank_variables
from shmring.collectives.engine.kinds import check_size
from shmring.core.base.lifecycle import in_child
from shmring.core.memory.descriptor import above_standard, hold_standard
from shmring.core.memory.sweep import sweep
from shmring.core.placement.cpus import usable_processors
from shmring.errors import PeerLostError, RankFailedError
from shmring.launch.cloudpickling import check_portable, hidden_main
from shmring.launch.init import init as init_communicator
from shmring.launch.numerical_threads import thread_share, thread_share_text
from shmring.launch.processes import LONGEST_WAIT_S, describe_signal, die_with_parent, seconds
from shmring.launch.report import (
    Kind,
    Report,
    ReportReader,
    error_of,
    leave_after,
    report_of_failure,
    report_of_result,
    result_of,
)
from shmring.launch.signals import HeldSignals
from shmring.launch.spawn_arguments import SpawnArguments
from shmring.launch.supervisor import Rank, Supervisor
from shmring.launch.threads import check_free_threaded, run_in_threads

if TYPE_CHECKING:
    from shmring.communicator import Communicator
    from shmring.typing import StartMethod

T = TypeVar("T")


def spawn(
    fn: Callable[Concatenate[Communicator, ...], T],
    size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
    start_method: StartMethod = "spawn",
    env: Mapping[str, str] | None = None,
    init: Mapping[str, Any] | None = None,
    grace: float = 2.0,
    threads: bool = False,
) -> list[T]:
    """Run ``fn(comm, *args, **kwargs)`` in ``size`` processes; return what it returned on each rank.

    Parameters
    ----------
    fn : callable
        Takes its rank's communicator first. Must be importable by name from a module, unless ``start_method`` is
        ``"fork"``; and so the calling script needs its ``if __name__ == "__main__":``. In a notebook or in the
        interpreter it may be defined right there, if cloudpickle is installed (``pip install 'shmring[notebook]'``).
    size : int
        The number of processes.
    args, kwargs : sequence, mapping, optional
        Further arguments of ``fn``, equal on all ranks; pickled unless ``start_method`` is ``"fork"``.
    timeout : float, optional
        Seconds for the whole run; None: no limit.
    start_method : {"spawn", "forkserver", "fork"}
        How `multiprocessing` makes the processes. ``"spawn"`` starts new interpreters, and is the default because
        it does not depend on the state of this process: ``"fork"`` copies locks that other threads hold (numerical
        libraries and communicators have threads), and ``"forkserver"`` leaves a server running.
    env : mapping, optional
        Environment variables for the ranks, on top of this process's. They are set before the ranks import
        anything, so ``OMP_NUM_THREADS`` works (except with ``"fork"`` and a running ``"forkserver"``). It is the usable
        processors per rank, at least 1, unless it or the variable of another numerical library is set; the first call
        of a program prints a line that shows it.
    init : mapping, optional
        Further arguments of `shmring.init`.
    grace : float
        Seconds that ranks have when another one has failed: first to end by themselves, then after SIGTERM.
        After that they are killed. None: no limit.
    threads : bool
        Make the ranks threads of this process instead: in a free-threaded Python (3.14t), where they run at once. Ranks
        get ``args`` and ``kwargs`` themselves, not copies, and nothing is pickled; large collectives access the arrays
        of all ranks where they lie. ``start_method`` and ``env`` do not apply, and no environment variable is set.

    Returns
    -------
    list
        What ``fn`` returned, by rank.

    Raises
    ------
    ImportError
        ``fn`` is a lambda or a function inside another one; or it, or a class that it gets, is defined in a notebook or
        in the interpreter, and cloudpickle is not installed.
    ValueError
        ``size`` is not a possible number of ranks, ``timeout`` or ``grace`` is negative or NaN, the platform has
        no such ``start_method``, or that or ``env`` is given with ``threads``.
    RuntimeError
        This process is a daemon of `multiprocessing`, as the workers of a pool are; or ``threads``, where Python has
        the GIL, or has enabled it.
    PeerLostError
        A rank was killed by a signal, which the message names.
    RankFailedError
        A rank left with a status, raised what cannot be pickled, or returned what cannot be unpickled here; or the
        program has no ``if __name__ == "__main__":`` around the call.
    TimeoutError
        The run took longer than ``timeout``; the message names the ranks that were not done.
    Exception
        What the first failing rank raised, of its own type. Its cause has that rank's traceback.

    Notes
    -----
    Blocks until all ranks have ended, and leaves none of them and nothing in shared memory; the ranks die with the
    calling thread, too. (`multiprocessing` keeps its resource tracker, one process per program. Processes that a rank
    has started are that rank's to end.) Signal handlers of this process, so also Ctrl-C, run between two steps of the
    launch; if one raises, the ranks are ended first, and a second one ends them without grace.

    When a rank fails its communicator aborts, so that the others get `AbortedError` from the call they are in. The
    error raised is that of the rank that failed by itself, not of those that failed in consequence. Sets ``RANK``,
    ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` and ``SHMRING_SESSION`` in each rank.

    A thread cannot be killed: with ``threads``, the communicators of ranks that must end are aborted, and after
    ``grace`` a RuntimeWarning names those that are still running. They end at their next call, or with the process.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        raise SystemExit(_NOT_GUARDED if process.name.startswith(_RANK_NAME) else _IMPORTED)
    if process.daemon and not threads:
        raise RuntimeError(
            "this process is a daemon of multiprocessing, as the workers of a Pool are, and may start no processes: "
            "call spawn in a worker of concurrent.futures.ProcessPoolExecutor, or in a Process with daemon=False"
        )
    check_size(operator.index(size))
    context = multiprocessing.get_context(start_method)
    if threads:
        check_free_threaded()
        if env or start_method != "spawn":
            raise ValueError("threads=True: env and start_method are for ranks that are processes")
    elif start_method != "fork":
        check_portable(fn)
    deadline = time.monotonic() + seconds(timeout, "timeout")
    grace = seconds(grace, "grace")
    call = fn, tuple(args), dict(kwargs or {}), dict(init or {})
    if threads:
        return run_in_threads(call, size, timeout, deadline, grace)
    env = {**_thread_share(size, {**os.environ, **(env or {})}), **(env or {})}
    hold_standard()
    with HeldSignals() as signals:
        processes = _Processes(context, size, call, env, grace, signals)
        try:
            processes.supervise(timeout, deadline)
        finally:
            sweep(processes.session)
    if failed := processes.failed:
        raise failed[0].error()
    return [rank.result() for rank in processes.ranks]


# The status of a rank that calls spawn while it imports the program of the process that has started it. It ends at once
# and without a traceback: the process that has started it has the message.
_NOT_GUARDED = 176
_GUARD = "put that call, and all that only the first process has to do, under `if __name__ == '__main__':`"
_IMPORTED = f"shmring.spawn: this process imports the program that has started it, and which calls spawn: {_GUARD}"
_RANK_NAME = "shmring rank"
_shown: set[str] = set()


def _thread_share(size: int, environ: Mapping[str, str]) -> dict[str, str]:
    share = thread_share(size, usable_processors(), environ)
    if share and (text := thread_share_text(share, size)) not in _shown:
        _shown.add(text)
        print(f"shmring.spawn: {text}", file=sys.stderr, flush=True)
    return share


class _Processes(Supervisor["_Rank"]):
    """The ranks of one call of `spawn`."""

    def __init__(
        self, context: Any, size: int, call: tuple, env: Mapping[str, str], grace: float, signals: HeldSignals
    ) -> None:
        super().__init__(size, grace)
        self.session = secrets.token_hex(8)
        self._context, self._call, self._env, self._signals = context, call, env, signals

    def make(self, number: int) -> _Rank:
        self._signals.deliver()
        variables = {**self._env, **rank_variables(number, self.size, self.session)}
        return _Rank(self._context, number, self._call, variables)

    def look(self, ranks: Sequence[_Rank], seconds: float) -> None:
        events = [event for rank in ranks for event in rank.events]
        if not self.ends_by_force:
            events.append(self._signals.fileno())
        ready = wait(events, min(seconds, LONGEST_WAIT_S))
        for rank in ranks:
            rank.look(ready)
        if not self.ends_by_force:
            self._signals.deliver()


class _Rank(Rank):
    """The parent's record of one child process: running, or ended with a report or without one."""

    def __init__(self, context: Any, number: int, call: tuple, variables: Mapping[str, str]) -> None:
        super().__init__(number)
        self._variables = variables
        self._report: Report | None = None
        self._pidfd = -1
        inbox, outbox = map(above_standard, os.pipe())
        self._inbox, self._outbox = Connection(inbox, writable=False), Connection(outbox, readable=False)
        self._reader = ReportReader(self._inbox.fileno())
        self._is_child = context.get_start_method() != "forkserver"
        self._is_exec = context.get_start_method() != "fork"
        parent_pid = os.getpid() if self._is_child else None
        self._arguments = SpawnArguments(variables, *call)
        self._process = context.Process(
            target=_child, args=(self._outbox, parent_pid, self._arguments), name=f"{_RANK_NAME} {number}"
        )

    @property
    def events(self) -> list[Any]:
        """Descriptors of which one is readable when `look` has something to do."""
        end = self._process.sentinel if self._pidfd < 0 else self._pidfd
        return [end] if self._report is not None or self._reader.at_end else [end, self._inbox]

    def start(self) -> None:
        # From then on only the child has the other end of the pipe.
        hidden = hidden_main() if self._is_exec else contextlib.nullcontext()
        with self._outbox, contextlib.closing(self._arguments), _exported(self._variables), hidden:
            try:
                self._process.start()
            finally:
                self.running = self._process.pid is not None
        # The sentinel of multiprocessing is a pipe, which children of the rank inherit and keep open after its end.
        if self._is_child:
            with contextlib.suppress(AttributeError, OSError):  # a Python or a kernel without it; no descriptor
                self._pidfd = above_standard(os.pidfd_open(self._process.pid))

    def look(self, ready: Sequence[Any]) -> None:
        """Read what the child has sent, and note its end."""
        if self._inbox in ready:
            self._take(self._reader.read())
        if self._process.sentinel in ready or self._pidfd in ready:
            if self._report is None:
                self._take(self._reader.read_rest())
            self.running = False
            self._process.join()
            if self._report is None:
                self.fail(self.is_ended_here)

    def stop(self, by_force: bool) -> None:
        if by_force:
            self._process.kill()
        else:
            self._process.terminate()

    def close(self) -> None:
        self._inbox.close()
        with contextlib.suppress(ValueError):  # its status is lost, so that it counts as running
            self._process.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def result(self) -> Any:
        """The result of ``fn``; the rank has not failed."""
        assert self._report is not None
        return result_of(self._report, self.number)

    def error(self) -> BaseException:
        """The error of a rank that failed."""
        if self._report is not None:
            return error_of(self._report, self.number)
        # Status 0 is for a rank that called os._exit(0): it has no result either.
        name, status = f"rank {self.number} (pid {self._pid})", self._status
        if status == _NOT_GUARDED:
            text = f"each rank imports the program, which then calls spawn again: {_GUARD}"
            return RankFailedError(text, self.number, status)
        if status is None:  # in a thread, which cannot change what SIGCHLD does
            text = f"{name} ended without a result; this program ignores SIGCHLD, and so its status is lost"
            return RankFailedError(text, self.number)
        if status < 0:
            return PeerLostError(f"{name} was killed by {describe_signal(-status)}", self.number, self._pid)
        return RankFailedError(
            f"{name} exited with status {status} without a result; its messages are on standard error",
            self.number,
            status,
        )

    def fail(self, followed: bool) -> None:
        super().fail(followed)
        self._pid, self._status = self._process.pid or 0, self._process.exitcode

    def _take(self, report: Report | None) -> None:
        self._report = report
        if report is not None and report.kind != Kind.RETURNED:
            self.fail(report.kind == Kind.FOLLOWED)


_export_lock = threading.Lock()


@in_child
def _renew_lock() -> None:
    # A forked child inherits it locked, by the thread that made the child.
    global _export_lock
    _export_lock = threading.Lock()


@contextlib.contextmanager
def _exported(variables: Mapping[str, str]) -> Iterator[None]:
    # A child's libraries read their variables while they load, before any code of ours runs in it; and
    # multiprocessing hands its own environment to what it starts. So change that for the moment.
    with _export_lock:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


# ---- in the child ----------------------------------------------------------------------------------------------


def _child(outbox: Connection, parent_pid: int | None, arguments: SpawnArguments) -> None:
    die_with_parent(parent_pid)
    variables, fn, args, kwargs, options = arguments.args
    os.environ.update(variables)  # the fork server's environment is older than the variables
    own_pid = os.getpid()
    comm = None
    try:
        rank, size, session = int(variables["RANK"]), int(variables["WORLD_SIZE"]), variables["SHMRING_SESSION"]
        comm = init_communicator(rank=rank, size=size, session=session, **options)
        result = fn(comm, *args, **kwargs)
        if os.getpid() != own_pid:  # a child that fn forked has come to its end here
            return
        report = report_of_result(result)
        comm.close()
    except BaseException as error:
        if os.getpid() != own_pid:
            raise
        # Report first: the parent then reads this failure before the others can fail in consequence.
        report_of_failure(error).send(outbox.fileno())
        if comm is not None:
            leave_after(error, comm, rank)
        raise SystemExit(1) from None
    report.send(outbox.fileno())
