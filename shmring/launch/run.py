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
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from shmring.collectives.bootstrap.environment import rank_variables
from shmring.collectives.engine.kinds import check_size
from shmring.core.base import followed
from shmring.core.base.pace import Pace
from shmring.core.base.sysfs import stat_fields
from shmring.core.memory.descriptor import hold_standard
from shmring.core.memory.sweep import sweep
from shmring.core.placement.cpu_binding import masks
from shmring.core.placement.cpus import usable_processors
from shmring.core.placement.topology import discover
from shmring.launch.command import Command
from shmring.launch.numerical_threads import thread_share, thread_share_text
from shmring.launch.processes import (
    adopted,
    adopting_orphans,
    children,
    describe_status,
    seconds,
    take_signal,
)
from shmring.launch.supervisor import Rank, Supervisor

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
# Seconds that the others have once a rank has failed: to print their errors; and if that one only followed, to be the
# one that failed of itself.
_LAST_WORDS_S = 0.5
_CULPRIT_S = 5.0
_EXEC_S = 0.2  # in which a process without an environment gets one
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
        The number of processes.
    env : mapping, optional
        Environment variables for the ranks, on top of this process's.
    tag_output : bool
        Begin every line that a rank writes with ``[rank] ``. The ranks then write into pipes; ``PYTHONUNBUFFERED=1`` is
        set for them unless it has a value, so that Python programs still show each line when they print it.
    bind : {"core", "l3", "numa", "none"}
        Bind each rank to the processors of one core, one last-level cache, or one NUMA node, of those that this process
        may use; ranks in order fill the units in order (`shmring.core.placement.cpu_binding`).
    grace : float
        Seconds from SIGTERM to SIGKILL; None: no limit.

    Returns
    -------
    int
        0 if every rank's status was 0; else the status of the rank that failed first, or 128 + N if signal N killed it.
        A rank that only followed from the failure of another one counts if there is no other: its status is 69.

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
    is set. Sets ``OMP_NUM_THREADS`` to the usable processors per rank, at least 1, and prints a line that shows it,
    unless that or the variable of another numerical library is set. Rank 0 has this process's standard input,
    the others have none. When a rank fails the others are ended; what they leave running is ended with them,
    where the kernel lets this process adopt it (Linux does; emulators may not). Signals that would end this process go
    to the ranks instead, and a second one kills them.
    """
    check_size(operator.index(size))
    grace = seconds(grace, "grace")
    processors = masks(discover(), size, bind)
    session = secrets.token_hex(8)
    environ = {**os.environ, **(env or {})}
    share = thread_share(size, min(usable_processors(), size * min(map(len, processors))), environ)
    if share:
        print(f"shmring run: {thread_share_text(share, size)}", file=sys.stderr, flush=True)
    variables = {**_rendezvous_place(), **share, **(env or {})}
    if tag_output:
        variables.setdefault("PYTHONUNBUFFERED", os.environ.get("PYTHONUNBUFFERED", "1"))
    # Without another thread, which may start processes, all that this one adopts was left by the ranks.
    is_alone = threading.active_count() == 1
    older_children = children()
    with adopting_orphans(), _blocked_signals() as (mask_before, waited):
        hold_standard()
        commands = _Commands(
            list(command),
            [{**variables, **rank_variables(rank, size, session)} for rank in range(size)],
            None if bind == "none" else processors,
            tag_output,
            grace,
            mask_before,
            waited,
            older_children,
        )
        try:
            commands.supervise()
        finally:
            _end_adopted(older_children, grace, None if is_alone else session)
            commands.close()
            sweep(session)
    return commands.failed[0].status if commands.failed else 0


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
        while take_signal(waited, 0) is not None:
            pass
        try:
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Commands(Supervisor["_Rank"]):
    """The ranks of one run.

    Parameters
    ----------
    command : list of str
    variables : list of dict
        By rank.
    processors : list, optional
        By rank: those to which it is bound.
    tags_output : bool
    mask, waited : set
        The signals that the ranks have blocked; those that this process has blocked, to take them in `look`.
    older_children : set of int
        The children that this process had before.
    """

    def __init__(
        self,
        command: list[str],
        variables: list[dict[str, str]],
        processors: Sequence[Sequence[int]] | None,
        tags_output: bool,
        grace: float,
        mask: set,
        waited: set,
        older_children: set[int],
    ) -> None:
        super().__init__(len(variables), grace)
        self._command, self._variables, self._processors = command, variables, processors
        self._tags_output = tags_output
        self._mask, self._waited = mask, waited
        self._not_adopted = older_children
        self._interrupted_at: float | None = None
        self._pumps: list[threading.Thread] = []

    def make(self, number: int) -> _Rank:
        return _Rank(number, self._start, self._tags_output)

    def look(self, ranks: Sequence[_Rank], seconds: float) -> None:
        """Take a signal, and pass it on to the ranks, or take the ends of ranks."""
        if not self._pumps:
            self._pump()
        taken = take_signal(self._waited, min(seconds, _MISSED_SIGNAL_S))
        now = time.monotonic()
        self._reap(ranks)
        if taken is None or taken[0] == signal.SIGCHLD:
            return
        number, code = signal.Signals(taken[0]), taken[1]
        if number in _TERMINATING:
            if self._interrupted_at is None:
                self._interrupted_at = now
            elif now - self._interrupted_at > 0.5:  # not the echo of the first one
                number = signal.SIGKILL
        # The terminal sends to the whole group, so the ranks have that signal already.
        if number == signal.SIGKILL or code != _SI_KERNEL:
            for rank in self.running:
                rank.process.send_signal(number)

    def patience(self) -> float:
        first, now = self.failed[0], time.monotonic()
        if self._interrupted_at is not None:  # every rank ends by itself
            return max(first.failed_at, self._interrupted_at) + self.grace - now
        return first.failed_at + (_CULPRIT_S if first.followed else _LAST_WORDS_S) - now

    def end_all(self) -> None:
        """Print which rank has failed, after what the ranks have printed of that, and end the others."""
        if self.failed:
            self._show(self.failed[0])
        super().end_all()

    def _show(self, rank: _Rank) -> None:
        what = f"rank {rank.number} (pid {rank.pid}) {describe_status(rank.process.returncode)}"
        if rank.followed:
            what += ", as a rank that it needed had aborted or closed its communicator"
        with contextlib.suppress(OSError):  # a standard error that cannot be written
            print(f"shmring run: {what}{'; ending the others' if self.running else ''}", file=sys.stderr)

    def close(self) -> None:
        """Wait until all that the ranks wrote has been copied; no process has the other ends of the pipes."""
        for pump in self._pumps:
            pump.join()
        for rank in self.ranks:
            for stream, _ in rank.pipes:
                stream.close()

    def _start(self, number: int, outputs: Sequence[int]) -> Command:
        """Start one rank, in this process group, so that the terminal's signals and job control reach it."""
        with contextlib.ExitStack() as opened:
            none = -1 if number == 0 else opened.enter_context(open(os.devnull)).fileno()
            return Command(
                self._command,
                {**os.environ, **self._variables[number]},
                (none, *(outputs or (-1, -1))),
                None if self._processors is None else self._processors[number],
                self._mask,
            )

    def _pump(self) -> None:
        for rank in self.ranks:
            for stream, target in rank.pipes:
                tag = f"[{rank.number}] ".encode()
                self._pumps.append(threading.Thread(target=_copy_lines, args=(stream, target, tag), daemon=True))
                self._pumps[-1].start()

    def _reap(self, ranks: Sequence[_Rank]) -> None:
        for rank in ranks:
            rank.reap()
        # Adopted orphans must not pile up as zombies in a long run. A rank that ended just now is left to `Command`.
        own = {rank.pid for rank in self.ranks}
        for pid in adopted() - self._not_adopted - own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class _Rank(Rank):
    """One command: running, or ended with a status."""

    def __init__(self, number: int, start: Callable[[int, Sequence[int]], Command], tags_output: bool) -> None:
        super().__init__(number)
        self._start, self._tags_output = start, tags_output
        self.pid = 0
        self.pipes: list[tuple[IO[bytes], int]] = []

    def start(self) -> None:
        inputs = []
        try:
            for target in (1, 2) if self._tags_output else ():
                output, written = os.pipe2(os.O_CLOEXEC)
                inputs.append(written)
                self.pipes.append((open(output, "rb"), target))  # noqa: SIM115  (closed by its owner)
            self.process = self._start(self.number, inputs)
        finally:
            for one in inputs:
                os.close(one)
        self.running, self.pid = True, self.process.pid

    def stop(self, by_force: bool) -> None:
        self.process.send_signal(signal.SIGKILL if by_force else signal.SIGTERM)

    def reap(self) -> None:
        """Note its end."""
        status = self.process.poll()
        if status is not None:
            self.running = False
            if status:
                self.fail(self.is_ended_here or status == followed.STATUS)

    @property
    def status(self) -> int:
        """The status that a shell would report."""
        status = self.process.returncode
        return status if status >= 0 else 128 - status


def _end_adopted(older: set[int], grace: float, session: str | None) -> None:
    """End the processes that the ranks left running, which have been adopted; so may the children of these be.

    A child of a thread that has ended passes to this one, too. So with a ``session``, only processes that have it in
    their environment are ended.
    """
    kill_at = time.monotonic() + grace
    asked: set[int] = set()
    pace = Pace()
    while orphans := {pid for pid in adopted() - older if session is None or _is_of(pid, session)}:
        force = time.monotonic() > kill_at
        for pid in orphans:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0 and (force or pid not in asked):
                    os.kill(pid, signal.SIGKILL if force else signal.SIGTERM)
                    asked.add(pid)
        pace.pause()


def _is_of(pid: int, session: str) -> bool:
    """Whether a process was started in a session; True of a zombie, which has no environment any more.

    A process has none for a moment in the middle of an exec, too: it is looked at again.
    """
    pace, until = Pace(), time.monotonic() + _EXEC_S
    while not (environment := _environment(pid)):
        fields = stat_fields(pid)
        if not fields or fields[0] in "ZX":
            return True
        if time.monotonic() > until:
            return False
        pace.pause()
    return f"SHMRING_SESSION={session}".encode() in environment.split(b"\0")


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return environ.read()
    except OSError:
        return b""


def _copy_lines(source: IO[bytes], target: int, tag: bytes) -> None:
    """Copy until the writers have ended; whole lines in one write each, so that ranks do not mix within a line.

    If the target cannot be written (its reader has ended), the source is closed, and the ranks get that error.
    """
    with source, contextlib.suppress(OSError):
        for line in source:
            rest = memoryview(tag + (line if line.endswith(b"\n") else line + b"\n"))
            while rest:
                rest = rest[os.write(target, rest) :]
