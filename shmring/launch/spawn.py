"""`spawn`: run a Python function in several processes, each with its rank of one communicator.

The engine of ``shmring run``, which starts commands instead, is `shmring.launch.run`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from shmring.bootstrap.environment import rank_variables
from shmring.engine.lifecycle import in_child
from shmring.errors import AbortedError, BrokenError, PeerLostError, RankFailedError
from shmring.launch.init import init as init_communicator
from shmring.launch.processes import describe_signal, die_with_parent
from shmring.memory.sweep import sweep


def spawn(
    fn: Callable[..., Any],
    size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
    start_method: str = "spawn",
    env: Mapping[str, str] | None = None,
    init: Mapping[str, Any] | None = None,
    grace: float = 2.0,
) -> list[Any]:
    """Run ``fn(comm, *args, **kwargs)`` in ``size`` processes; return what it returned on each rank.

    Parameters
    ----------
    fn : callable
        Takes its rank's communicator first. Must be importable by name from a module, unless ``start_method`` is
        ``"fork"``; and so the calling script needs its ``if __name__ == "__main__":``.
    size : int
        How many processes.
    args, kwargs : sequence, mapping, optional
        Passed on, the same to every rank; pickled unless ``start_method`` is ``"fork"``.
    timeout : float, optional
        Seconds for the whole run; None for ever.
    start_method : {"spawn", "forkserver", "fork"}
        How `multiprocessing` makes the processes. ``"spawn"`` starts each from nothing, and is the default because
        it alone is right whatever this process has been doing: ``"fork"`` copies locks that other threads hold
        (numerical libraries and communicators have threads), and ``"forkserver"`` leaves a server running.
    env : mapping, optional
        Environment variables for the ranks, on top of this process's. They are set before the ranks import
        anything, so ``OMP_NUM_THREADS`` works (except with ``"fork"`` and a running ``"forkserver"``).
    init : mapping, optional
        Further arguments of `shmring.init`.
    grace : float
        Seconds that ranks are given when another one failed: first to end by themselves, then after SIGTERM.
        After that they are killed.

    Returns
    -------
    list
        What ``fn`` returned, by rank.

    Raises
    ------
    ValueError
        ``size`` is not positive, or the platform has no such ``start_method``.
    PeerLostError
        A rank was killed by a signal, which the message names.
    RankFailedError
        A rank left with a status, or raised or returned what cannot be pickled.
    TimeoutError
        The run took longer than ``timeout``; the message names the ranks that were not done.
    Exception
        What the first failing rank raised, of its own type. Its cause has that rank's traceback.

    Notes
    -----
    Blocks until all ranks have ended, and leaves none of them and nothing in shared memory, whatever happened; the
    ranks die with the calling thread, too. (`multiprocessing` keeps its resource tracker, one process per program.)
    When a rank fails its communicator aborts, so that the others get `AbortedError` from the call they are in. The
    error raised is that of the rank that failed by itself, not of those that failed in consequence. Sets ``RANK``,
    ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` and ``SHMRING_SESSION`` in each rank.
    """
    if size < 1:
        raise ValueError(f"size={size} must be at least 1")
    context = multiprocessing.get_context(start_method)
    session = secrets.token_hex(8)
    deadline = None if timeout is None else time.monotonic() + timeout
    ranks: list[_Rank] = []
    try:
        task = (fn, tuple(args), dict(kwargs or {}), dict(init or {}))
        for number in range(size):
            ranks.append(_Rank(context, number, task, {**(env or {}), **rank_variables(number, size, session)}))
            ranks[-1].start()
        _attend(ranks, deadline, lambda: any(rank.failure for rank in ranks))
        late = [rank.number for rank in ranks if rank.running]
        if not any(rank.failure for rank in ranks) and late:
            raise TimeoutError(f"ranks {', '.join(map(str, late))} of {size} were not done after {timeout} s")
        _attend(ranks, time.monotonic() + grace)
    finally:
        _end(ranks, grace)
        sweep(session)
    if (error := _first_failure(ranks)) is not None:
        raise error
    return [pickle.loads(rank.result) for rank in ranks]


class _Rank:
    """One child as its parent sees it: running, or ended with a result or a failure.

    ``followed`` tells a failure that another rank's failure brought about from one that came by itself.
    """

    def __init__(self, context: Any, number: int, task: tuple, variables: Mapping[str, str]) -> None:
        self.number = number
        self.running = False
        self.ended_here = False
        self.result = b""
        self.failure: BaseException | None = None
        self.followed = False
        self.failed_at = 0.0
        self.inbox, self._outbox = context.Pipe(duplex=False)
        self._reported = False
        self._variables = variables
        parent_pid = os.getpid() if context.get_start_method() != "forkserver" else None
        self.process = context.Process(target=_child, args=(self._outbox, parent_pid, variables, *task))

    def start(self) -> None:
        """Start the process; from then on the pipe's other end is its alone, so that its death is seen."""
        with self._outbox, _exported(self._variables):
            try:
                self.process.start()
            finally:
                self.running = self.process.pid is not None

    def take_report(self) -> None:
        """Read what the child sent; called when there is something or the child's end is closed."""
        try:
            kind, payload, text = pickle.loads(self.inbox.recv_bytes())
        except EOFError:
            self.inbox.close()
            return
        self._reported = True
        if kind == "result":
            self.result = payload
        else:
            failure = self._unpack(kind, payload, text)
            self._fail(failure, isinstance(failure, (AbortedError, PeerLostError)))

    def take_end(self) -> None:
        """The process has ended: read what it may have sent before, or find out why it sent nothing."""
        while not self.inbox.closed:
            self.take_report()
        self.running = False
        self.process.join()
        if not self._reported:
            self._fail(self._silent_end(self.process.exitcode), self.ended_here)

    def end(self, how: Callable[[Any], None]) -> None:
        """Terminate or kill the process, which then is no failure of its own."""
        if self.running:
            self.ended_here = True
            how(self.process)

    def _fail(self, failure: BaseException, followed: bool) -> None:
        self.failure, self.followed, self.failed_at = failure, followed, time.monotonic()

    def _unpack(self, kind: str, payload: bytes, text: str) -> BaseException:
        error: BaseException | None = None
        if kind == "error":
            with contextlib.suppress(Exception):  # its module may not even exist here
                error = pickle.loads(payload)
        if error is None:
            status = int(payload) if kind == "left" else 0
            what = f"left with status {status}" if kind == "left" else text.rstrip().rpartition("\n")[2]
            error = RankFailedError(f"rank {self.number}: {what}", self.number, status)
        elif hasattr(error, "add_note"):
            error.add_note(f"raised by rank {self.number}")
        error.__cause__ = _RemoteTraceback(self.number, text)
        return error

    def _silent_end(self, status: int) -> Exception:
        # 0 is for a rank that called os._exit(0): it has no result either.
        name = f"rank {self.number} (pid {self.process.pid})"
        if status < 0:
            return PeerLostError(f"{name} was killed by {describe_signal(-status)}", self.number, self.process.pid or 0)
        return RankFailedError(
            f"{name} exited with status {status} without a result; its messages are on standard error "
            "(a function that is not importable by name needs start_method='fork')",
            self.number,
            status,
        )


class _RemoteTraceback(Exception):
    """Carries a rank's traceback as text, to be shown as the cause of the error raised here."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank
        self.text = text

    def __str__(self) -> str:
        return f"\n\non rank {self.rank}:\n{self.text}"


def _attend(ranks: Sequence[_Rank], deadline: float | None, enough: Callable[[], bool] = lambda: False) -> None:
    """Take reports and ends until all ranks have ended, ``enough()`` or the deadline has come."""
    while (running := [rank for rank in ranks if rank.running]) and not enough():
        ends = {rank.process.sentinel: rank for rank in running}
        reports: dict[Any, _Rank] = {rank.inbox: rank for rank in running if not rank.inbox.closed}
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait([*reports, *ends], left)
        for one in ready:
            if isinstance(one, Connection):
                reports[one].take_report()
        for one in ready:
            if not isinstance(one, Connection):
                ends[one].take_end()
        if not ready:
            return


def _end(ranks: Sequence[_Rank], grace: float) -> None:
    """See that every process is gone, by force where it takes that; a second Ctrl-C takes the force at once."""
    try:
        for rank in ranks:
            rank.end(lambda process: process.terminate())
        _attend(ranks, time.monotonic() + grace)
    finally:
        for rank in ranks:
            rank.end(lambda process: process.kill())
        _attend(ranks, None)
        for rank in ranks:
            rank.inbox.close()
            rank.process.close()


def _first_failure(ranks: Sequence[_Rank]) -> BaseException | None:
    """The failure to show: of those that came by themselves the earliest, else the earliest."""
    failed = [rank for rank in ranks if rank.failure is not None]
    first = min(failed, key=lambda rank: (rank.followed, rank.failed_at), default=None)
    return None if first is None else first.failure


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


def _child(outbox: Connection, parent_pid: int | None, variables: Mapping[str, str], fn, args, kwargs, options) -> None:
    die_with_parent(parent_pid)
    os.environ.update(variables)  # the fork server's environment is older than the variables
    comm = None
    try:
        rank, size, session = int(variables["RANK"]), int(variables["WORLD_SIZE"]), variables["SHMRING_SESSION"]
        comm = init_communicator(rank=rank, size=size, session=session, **options)
        result = _pack_result(fn(comm, *args, **kwargs))
        comm.close()
    except BaseException as error:
        # Report first: the parent then hears of this failure before the others can fail in consequence.
        outbox.send_bytes(_pack_failure(error))
        if comm is not None:
            with contextlib.suppress(Exception):
                if not isinstance(error, BrokenError):
                    comm.abort(f"rank {rank} failed with {type(error).__name__}: {error}")
                comm.close()
        raise SystemExit(1) from None
    outbox.send_bytes(result)


def _pack_result(result: object) -> bytes:
    return pickle.dumps(("result", pickle.dumps(result), ""))


def _pack_failure(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        return pickle.dumps(("left", str(status).encode(), text))
    try:
        payload = pickle.dumps(error)
        pickle.loads(payload)  # many an exception can be pickled but not be made again
    except Exception:
        return pickle.dumps(("unpicklable", b"", text))
    return pickle.dumps(("error", payload, text))
