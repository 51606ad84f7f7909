"""`run`: start a command several times, each with its rank, and return when all their processes have ended.

The engine of ``shmring run``. Signals are blocked and taken one at a time by the loop that takes the ends of children,
so nothing here runs inside a signal handler.
"""

from __future__ import annotations

import contextlib
import operator
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from shmring.bootstrap.environment import rank_variables
from shmring.engine.signature import check_size
from shmring.launch.processes import (
    adopting_orphans,
    children,
    describe_status,
    die_with_parent,
    seconds,
)
from shmring.memory.sweep import sweep
from shmring.placement.cpu_binding import masks
from shmring.placement.topology import discover

_FORWARDED = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
_TERMINATING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# Seconds. A thread that does not block SIGCHLD may take it just before the loop waits; the loop finds the end of the
# child after this time.
_MISSED_SIGNAL_S = 0.5
_SI_KERNEL = 0x80  # si_code of what the terminal sends, to the whole foreground group


def run(
    command: Sequence[str],
    size: int,
    *,
    env: Mapping[str, str] | None = None,
    tag_output: bool = False,
    bind: str = "none",
    grace: float = 5.0,
) -> int:
    """Run ``command`` in ``size`` processes that find each other with ``shmring.init()``.

    Parameters
    ----------
    command : sequence of str
        Program and arguments, the same for every rank.
    size : int
        How many processes.
    env : mapping, optional
        Environment variables for the ranks, on top of this process's.
    tag_output : bool
        Begin every line that a rank writes with ``[rank] ``. The ranks then write into pipes; ``PYTHONUNBUFFERED=1`` is
        set for them unless it has a value, so that Python programs still show each line when they print it.
    bind : {"core", "l3", "numa", "none"}
        Bind each rank to the processors of one core, one last-level cache, or one NUMA node, of those that this process
        may use; ranks in order fill the units in order (`shmring.placement.cpu_binding`).
    grace : float
        Seconds from SIGTERM to SIGKILL; None: no limit.

    Returns
    -------
    int
        0 if every rank's status was 0; else the status of the rank that failed first, or 128 + N if signal N killed it.

    Raises
    ------
    ValueError
        ``size`` is not a possible number of ranks, ``grace`` is negative or NaN, or there is no such ``bind``.
    OSError
        The command cannot be started; none is left running.

    Notes
    -----
    Blocks; call it from the main thread. Sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` and
    ``SHMRING_SESSION``, and for `torch.distributed` to meet ``MASTER_ADDR`` and ``MASTER_PORT``, unless one of these
    is set; everything else, ``OMP_NUM_THREADS`` too, is passed on as it is. Rank 0 has this process's standard input,
    the others have none. When a rank fails the others are ended; what they leave running is ended with them,
    where the kernel lets this process adopt it (Linux does; emulators may not). Signals that would end this process go
    to the ranks instead, and a second one kills them.
    """
    check_size(operator.index(size))
    grace = seconds(grace, "grace")
    processors = masks(discover(), size, bind)
    session = secrets.token_hex(8)
    variables = {**_rendezvous_place(), **(env or {})}
    if tag_output:
        variables.setdefault("PYTHONUNBUFFERED", os.environ.get("PYTHONUNBUFFERED", "1"))
    older_children = children()
    with adopting_orphans(), _blocked_signals() as (mask_before, waited):
        gang = _Gang(tag_output, older_children)
        try:
            for rank in range(size):
                gang.start(
                    rank,
                    command,
                    {**variables, **rank_variables(rank, size, session)},
                    mask_before,
                    waited,
                    None if bind == "none" else processors[rank],
                )
            gang.supervise(waited, grace)
        finally:
            gang.send(signal.SIGKILL)
            gang.wait()
            _end_adopted(older_children, grace)
            gang.close()
            sweep(session)
    return gang.status


def _rendezvous_place() -> dict[str, str]:
    """The address for `torch.distributed`: a port that was free a moment ago, unless the environment has an address."""
    if "MASTER_ADDR" in os.environ or "MASTER_PORT" in os.environ:
        return {}
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    except OSError:  # no network here; programs that need it raise
        return {}


@contextlib.contextmanager
def _blocked_signals() -> Iterator[tuple[set, set]]:
    """Block the signals that the loop takes; those that this process was started to ignore (nohup) stay ignored."""
    waited = {number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    waited.add(signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    # Another thread, which does not block it, may receive a signal between two waits: it passes the signal on.
    this_thread = threading.get_ident()
    handlers = {}
    try:
        for number in waited:
            handlers[number] = signal.signal(number, lambda n, _: signal.pthread_kill(this_thread, n))
        yield before, waited
    finally:
        # What came after the last wait is meant for ranks that have ended.
        while signal.sigtimedwait(waited, 0) is not None:
            pass
        try:
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Gang:
    """The ranks of one run: their processes, and the status they have come to."""

    def __init__(self, tag_output: bool, older_children: set[int]) -> None:
        self.status = 0
        self._not_adopted = older_children
        self._tag_output = tag_output
        self._running: dict[int, subprocess.Popen] = {}
        self._pumps: list[threading.Thread] = []
        self._pipes: list[tuple[IO[bytes], int, bytes]] = []

    def start(
        self,
        rank: int,
        command: Sequence[str],
        variables: Mapping[str, str],
        mask: set,
        waited: set,
        processors: Sequence[int] | None,
    ) -> None:
        """Start one rank, in this process group, so that the terminal's signals and job control reach it."""
        parent_pid = os.getpid()

        def prepare() -> None:
            die_with_parent(parent_pid)
            if processors is not None:
                os.sched_setaffinity(0, processors)
            for number in waited:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        pipe = subprocess.PIPE if self._tag_output else None
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **variables},
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            preexec_fn=prepare,  # safe: no thread has been started here yet
        )
        self._running[rank] = process
        for stream, target in ((process.stdout, 1), (process.stderr, 2)):
            if stream is not None:
                self._pipes.append((stream, target, f"[{rank}] ".encode()))

    def supervise(self, waited: set, grace: float) -> None:
        """Wait for the ranks, pass signals on to them, and end them all when one has failed."""
        for pipe in self._pipes:
            self._pumps.append(threading.Thread(target=_copy_lines, args=pipe, daemon=True))
            self._pumps[-1].start()
        steps: list[tuple[float, signal.Signals]] | None = None
        interrupted_at: float | None = None
        while self._running:
            left = max(0.0, steps[0][0] - time.monotonic()) if steps else _MISSED_SIGNAL_S
            info = signal.sigtimedwait(waited, min(left, _MISSED_SIGNAL_S))
            now = time.monotonic()
            self._reap()
            if info is not None and info.si_signo != signal.SIGCHLD:
                number = signal.Signals(info.si_signo)
                if number in _TERMINATING:
                    if interrupted_at is None:
                        interrupted_at = now
                    elif now - interrupted_at > 0.5:  # not the echo of the first one
                        number = signal.SIGKILL
                # The terminal sends to the whole group, so the ranks have that signal already.
                if number == signal.SIGKILL or info.si_code != _SI_KERNEL:
                    self.send(number)
            if self.status and steps is None:
                # After Ctrl-C every rank ends by itself; otherwise the others would go on.
                first = now if interrupted_at is None else now + grace
                steps = [(first, signal.SIGTERM), (first + grace, signal.SIGKILL)]
            while steps and steps[0][0] <= time.monotonic():
                self.send(steps.pop(0)[1])

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every rank that is still running."""
        for process in self._running.values():
            process.send_signal(number)

    def wait(self) -> None:
        """Wait for all ranks to end; called when they have been killed."""
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def close(self) -> None:
        """Wait until all that the ranks wrote has been copied; they have ended."""
        for pump in self._pumps:
            pump.join()
        for stream, _, _ in self._pipes:
            stream.close()

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            del self._running[rank]
            if status and not self.status:
                self.status = status if status > 0 else 128 - status
                what = f"rank {rank} (pid {process.pid}) {describe_status(status)}"
                with contextlib.suppress(OSError):  # a standard error that cannot be written
                    print(f"shmring run: {what}{'; ending the others' if self._running else ''}", file=sys.stderr)
        # Adopted orphans must not pile up as zombies in a long run. A rank that ended just now is left to Popen.
        own = self._not_adopted | {process.pid for process in self._running.values()}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in own:
                    break
                os.waitpid(ended.si_pid, 0)


def _end_adopted(older: set[int], grace: float) -> None:
    """End the processes that the ranks left running, which have been adopted; so may the children of these be."""
    kill_at = time.monotonic() + grace
    asked: set[int] = set()
    while adopted := children() - older:
        force = time.monotonic() > kill_at
        for pid in adopted:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0 and (force or pid not in asked):
                    os.kill(pid, signal.SIGKILL if force else signal.SIGTERM)
                    asked.add(pid)
        time.sleep(0.005)


def _copy_lines(source: IO[bytes], target: int, tag: bytes) -> None:
    """Copy until the writers have ended; whole lines in one write each, so that ranks do not mix within a line.

    If the target cannot be written (its reader has ended), the source is closed, and the ranks get that error.
    """
    with source, contextlib.suppress(OSError):
        for line in source:
            rest = memoryview(tag + (line if line.endswith(b"\n") else line + b"\n"))
            while rest:
                rest = rest[os.write(target, rest) :]
