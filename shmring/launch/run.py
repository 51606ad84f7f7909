"""`run`: start a command several times, each with its rank, and be gone only when all of it is gone.

The engine of ``shmring run``. Signals are not handled but *waited for*: blocked, and taken one at a time by the same
loop that takes the ends of children, so nothing here runs inside a signal handler and nothing can be missed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from shmring.bootstrap.environment import rank_variables
from shmring.launch.processes import adopting_orphans, children, describe_status, die_with_parent
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
        Begin every line that a rank writes with ``[rank] ``. The ranks then write into pipes; so that Python programs
        still show each line as they print it, ``PYTHONUNBUFFERED=1`` is set for them unless it has a value.
    bind : {"core", "l3", "numa", "none"}
        Bind each rank to the processors of one core, one last-level cache, or one NUMA node, of those that this process
        may use; ranks in order fill the units in order (`shmring.placement.cpu_binding`).
    grace : float
        Seconds between the steps of force: SIGTERM, then SIGKILL.

    Returns
    -------
    int
        0 if every rank's status was 0; else the status of the rank that failed first, or 128 + N if signal N killed it.

    Raises
    ------
    ValueError
        ``size`` is not positive, or there is no such ``bind``.
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
    if size < 1:
        raise ValueError(f"size={size} must be at least 1")
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
    """Where the ranks of `torch.distributed` meet: at a port that was free a moment ago, unless somebody chose one."""
    if "MASTER_ADDR" in os.environ or "MASTER_PORT" in os.environ:
        return {}
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    except OSError:  # no network here: torch programs will say so
        return {}


@contextlib.contextmanager
def _blocked_signals() -> Iterator[tuple[set, set]]:
    """Hold back what is to be waited for; what this process was started to ignore (nohup) stays ignored."""
    waited = {number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    waited.add(signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        yield before, waited
    finally:
        # What came after the last look is meant for ranks that are gone.
        while signal.sigtimedwait(waited, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Gang:
    """The ranks of one run: their processes, and the status they have come to."""

    def __init__(self, tag_output: bool, older_children: set[int]) -> None:
        self.status = 0
        self._not_adopted = older_children
        self._tag_output = tag_output
        self._running: dict[int, subprocess.Popen] = {}
        self._pumps: list[threading.Thread] = []
        self._pipes: list[tuple[int, int, bytes]] = []

    def start(
        self,
        rank: int,
        command: Sequence[str],
        variables: Mapping[str, str],
        mask: set,
        processors: Sequence[int] | None,
    ) -> None:
        """Start one rank, in this process group, so that the terminal's signals and job control reach it."""
        parent_pid = os.getpid()

        def prepare() -> None:
            die_with_parent(parent_pid)
            if processors is not None:
                os.sched_setaffinity(0, processors)
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
                self._pipes.append((os.dup(stream.fileno()), target, f"[{rank}] ".encode()))
                stream.close()

    def supervise(self, waited: set, grace: float) -> None:
        """Wait for the ranks, pass signals on to them, and end them all when one has failed."""
        for pipe in self._pipes:
            self._pumps.append(threading.Thread(target=_copy_lines, args=pipe, daemon=True))
            self._pumps[-1].start()
        steps: list[tuple[float, signal.Signals]] | None = None
        interrupted_at: float | None = None
        while self._running:
            left = max(0.0, steps[0][0] - time.monotonic()) if steps else 3600.0
            info = signal.sigtimedwait(waited, left)
            now = time.monotonic()
            self._reap()
            if info is not None and info.si_signo != signal.SIGCHLD:
                number = signal.Signals(info.si_signo)
                if number in _TERMINATING:
                    if interrupted_at is None:
                        interrupted_at = now
                    elif now - interrupted_at > 0.5:  # not the echo of the first one
                        number = signal.SIGKILL
                # What the terminal sends, it sends to the whole group: the ranks have it already.
                if number == signal.SIGKILL or info.si_code != _SI_KERNEL:
                    self.send(number)
            if self.status and steps is None:
                # After Ctrl-C all are on their way out, each at its pace; otherwise nothing will end the others.
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
        """Wait until all that was written has been copied; the writers are gone by now."""
        for pump in self._pumps:
            pump.join()

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            del self._running[rank]
            if status and not self.status:
                self.status = status if status > 0 else 128 - status
                what = f"rank {rank} (pid {process.pid}) {describe_status(status)}"
                print(f"shmring run: {what}{'; ending the others' if self._running else ''}", file=sys.stderr)
        # Adopted orphans must not pile up as zombies in a long run. A rank that ended just now is left to Popen.
        own = self._not_adopted | {process.pid for process in self._running.values()}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in own:
                    break
                os.waitpid(ended.si_pid, 0)


def _end_adopted(older: set[int], grace: float) -> None:
    """End what the ranks left running, which has become ours by adoption; ending it may hand us more."""
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


def _copy_lines(source: int, target: int, tag: bytes) -> None:
    """Copy until the writers are gone; whole lines in one write each, so that ranks do not mix within a line."""
    with open(source, "rb") as lines:
        for line in lines:
            rest = memoryview(tag + (line if line.endswith(b"\n") else line + b"\n"))
            while rest:
                rest = rest[os.write(target, rest) :]
