"""Ranks for tests: real processes that start fast, can be killed, and print where they hang.

A *nursery* process is forked once, after collection and before the first test. It has every test module and library
loaded and no second thread, so that it forks a rank in milliseconds where starting Python and NumPy takes hundreds.
It forks ranks, reports their ends, and reaps them on request: until then an ended rank stays a zombie, so that its
process id is not used again and a test can signal ranks by pid.

    run_ranks(n, fn, *args)       fn(comm, *args) in n ranks -> results by rank; the first failure is raised
    start_ranks(n, fn, *args)     the same, under way: kill, stop, report/wait_for, then .outcomes()
    run_processes, start_processes    fn(rank, *args) without a communicator, for what lies below
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import io
import os
import pickle
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# One thread for each numerical library: the nursery forks, and ranks outnumber processors anyway. The libraries read
# these while they load, so this module must be imported before NumPy is (`conftest.py` imports it first).
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# The grid of group sizes: alone, a pair, odd, a power of two, and more than most machines have processors.
RANKS = (1, 2, 3, 4, 7)

TIMEOUT_S = 120.0
# How many times as long to wait for ranks: more than 1 where every instruction is emulated (tests/labs).
PATIENCE = float(os.environ.get("SHMRING_PATIENCE", "1"))
# How long a process that a rank has forked may hold the rank's socket after the rank's end, and send reports.
LINGER_S = 10.0


@dataclass
class Outcome:
    """How one rank came out: with a result, with an exception, or by a signal or status without a message."""

    rank: int
    pid: int
    result: Any = None
    error: BaseException | None = None
    traceback: str = ""
    status: int | None = None
    """Return code: 0, positive from exit, negative from a signal."""
    ended_at: float = 0.0
    """`time.monotonic()` in the rank as ``fn`` returned or raised; in the nursery if the rank sent nothing."""
    elapsed: float = 0.0
    """Seconds from the call of ``fn`` to its end; for display, not for assertions."""
    stuck: str = ""
    """Where every thread was as the watchdog ended the rank; empty if it did not."""

    @property
    def ok(self) -> bool:
        """Whether ``fn`` returned."""
        return self.error is None and self.status == 0 and not self.stuck

    @property
    def signal(self) -> int:
        """The signal that ended the rank, or 0."""
        return -self.status if self.status is not None and self.status < 0 else 0

    def __str__(self) -> str:
        head = f"rank {self.rank} (pid {self.pid}) after {self.elapsed:.3f} s: "
        if self.stuck:
            return f"{head}stuck\n{self.stuck}"
        if self.error is not None:
            return f"{head}raised\n{self.traceback}"
        if self.signal:
            return f"{head}killed by {signal.Signals(self.signal).name}\n{self.traceback}"
        return f"{head}returned {self.result!r}" if self.ok else f"{head}left with status {self.status}"


class RankError(AssertionError):
    """Ranks failed in a way that has no exception of its own; the text has every rank's outcome."""


def run_ranks(n: int, fn, *args, timeout: float = TIMEOUT_S, init: dict | None = None, env: dict | None = None) -> list:
    """Run ``fn(comm, *args)`` in ``n`` ranks; results by rank, or the first failure raised (`Gang.results`)."""
    return start_ranks(n, fn, *args, init=init, env=env).results(timeout)


def run_processes(n: int, fn, *args, timeout: float = TIMEOUT_S, env: dict | None = None) -> list:
    """Run ``fn(rank, *args)`` in ``n`` processes; results by rank, or the first failure raised (`Gang.results`)."""
    return start_processes(n, fn, *args, env=env).results(timeout)


def start_ranks(n: int, fn, *args, init: dict | None = None, env: dict | None = None) -> Gang:
    """Start ``fn(comm, *args)`` in ``n`` ranks of a fresh communicator and return at once."""
    session = secrets.token_hex(8)
    return Gang(n, with_communicator, (n, session, init or {}, fn, args), env)


def start_processes(n: int, fn, *args, env: dict | None = None) -> Gang:
    """Start ``fn(rank, *args)`` in ``n`` processes and return at once."""
    return Gang(n, fn, args, env)


def eventually(check, timeout: float = TIMEOUT_S) -> Any:
    """What ``check()`` returns once it raises no AssertionError; after ``timeout`` seconds its last one is raised.

    For what other processes do by themselves: each look sees all that is asserted at one moment.
    """
    deadline = time.monotonic() + PATIENCE * timeout
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.005)


def fields_of(pid: int) -> list[str]:
    """What the kernel has of a process that has not been reaped: its state, and all that follows (``man 5 proc``)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_stopped(pid: int) -> bool:
    """Whether a process, which may be a zombie but not gone, stands still."""
    return fields_of(pid)[0] == "T"


def report(point: str) -> None:
    """In a rank: send the test the name of the point that the rank has reached (`Gang.wait_for`)."""
    _send(_to_test, ("point", point))


def with_communicator(rank: int, size: int, session: str, init: dict, fn, args: tuple) -> Any:
    """Call ``fn(comm, *args)`` in this process, as a rank of a new communicator."""
    import shmring

    with shmring.init(rank=rank, size=size, session=session, **init) as comm:
        return fn(comm, *args)


class Gang:
    """Some processes under way. Whatever a test does, none outlives it: the fixture ``no_leaks`` sees to that."""

    def __init__(self, n: int, fn, args: tuple, env: dict | None) -> None:
        try:
            task = pickle.dumps((fn, args, env or {}))
        except (pickle.PicklingError, AttributeError) as error:
            raise TypeError(f"{fn!r} must be a function of a module, and its arguments picklable: {error}") from None
        self._nursery = nursery()  # before the sockets, whose ends it must not inherit if it is made just now
        pairs = [socket.socketpair() for _ in range(n)]
        # Where faulthandler writes: a file without a name, which outlives the rank's death by any signal.
        self._dumps = [os.memfd_create(f"rank {rank}") for rank in range(n)]
        pids = self._nursery.fork(task, [theirs.fileno() for _, theirs in pairs], self._dumps)
        for _, theirs in pairs:
            theirs.close()
        self._sockets = {ours: rank for rank, (ours, _) in enumerate(pairs)}
        self._inboxes = {ours: bytearray() for ours in self._sockets}
        self._outcomes = [Outcome(rank, pid) for rank, pid in enumerate(pids)]
        self._reports: list[list[str]] = [[] for _ in pids]
        self._finished = False
        _gangs.append(self)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; valid until the outcomes have been taken."""
        return [outcome.pid for outcome in self._outcomes]

    def signal(self, rank: int, number: int) -> float:
        """Send a signal to one rank; the moment it was sent, comparable with `Outcome.ended_at`."""
        assert not self._finished, "the ranks have been reaped"
        now = time.monotonic()
        os.kill(self._outcomes[rank].pid, number)
        return now

    def kill(self, rank: int) -> float:
        """SIGKILL one rank; the others go on."""
        return self.signal(rank, signal.SIGKILL)

    def survivors_of(self, *victims: int) -> list[Outcome]:
        """SIGKILL these ranks, all at once, wait for all to end, and return how the others did."""
        if len(victims) > 1:  # one that ran on would notice that another one is dead, and end by an error
            for rank in victims:
                self.stop(rank)
            while any(fields_of(self._outcomes[rank].pid)[0] not in "TZ" for rank in victims):  # stopped, or ended
                time.sleep(0.001)
        for rank in victims:
            self.kill(rank)
        outcomes = self.outcomes()
        assert all(outcomes[rank].signal == signal.SIGKILL for rank in victims), "\n".join(map(str, outcomes))
        return [outcome for outcome in outcomes if outcome.rank not in victims]

    def stop(self, rank: int) -> float:
        """Freeze one rank with SIGSTOP until `resume`; the watchdog can still kill it."""
        return self.signal(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> float:
        """Let a stopped rank go on."""
        return self.signal(rank, signal.SIGCONT)

    def wait_for(self, point: str, ranks=None, timeout: float = TIMEOUT_S) -> None:
        """Wait until the ranks (all unless given) have each called ``report(point)``; take one report of each."""
        awaited = set(range(len(self._outcomes)) if ranks is None else ranks)
        deadline = time.monotonic() + PATIENCE * timeout
        while missing := {rank for rank in awaited if point not in self._reports[rank]}:
            ended = [rank for rank in missing if rank not in self._sockets.values()]  # all its reports have been read
            if ended or time.monotonic() > deadline:
                outcomes = self.outcomes(timeout=1 if ended else 0)
                self._fail(f"ranks {sorted(missing)} never reported {point!r}", outcomes)
            self._read_sockets(deadline)
        for rank in awaited:
            self._reports[rank].remove(point)

    def reports(self, rank: int) -> list[str]:
        """The reports of a rank that `wait_for` has not taken; complete once the outcomes have been taken."""
        return self._reports[rank]

    def outcomes(self, timeout: float = TIMEOUT_S) -> list[Outcome]:
        """Wait for all ranks to end and return how each did; kill those that are stuck after ``timeout`` seconds.

        Those have `Outcome.stuck` set; nothing is raised. May be called again.
        """
        if self._finished:
            return self._outcomes
        deadline = time.monotonic() + PATIENCE * timeout
        while self._running and time.monotonic() < deadline:
            self._read_sockets(deadline)
        if stuck := self._running:
            self._end_by_force(stuck)
        deadline = time.monotonic() + PATIENCE * LINGER_S
        # What was sent before the end: all of it, also if this process was kept from its processor until the deadline.
        while self._sockets and (self._read_sockets(deadline) or time.monotonic() < deadline):
            pass
        for one in self._sockets:
            one.close()
        self._sockets.clear()
        self._nursery.reap(self.pids)
        self._finished = True
        for outcome, dump in zip(self._outcomes, self._dumps, strict=True):
            text = os.pread(dump, 1 << 20, 0).decode(errors="replace")
            os.close(dump)
            if outcome in stuck:
                outcome.stuck = text or "(it was stopped, or hangs where no signal reaches it)"
            elif outcome.signal:
                outcome.traceback = text
        _gangs.remove(self)
        return self._outcomes

    def results(self, timeout: float = TIMEOUT_S) -> list:
        """What each rank returned; or raise what the first rank to fail raised, caused by all ranks' outcomes."""
        outcomes = self.outcomes(timeout)
        failed = [outcome for outcome in outcomes if not outcome.ok]
        if failed:
            stuck = [outcome for outcome in failed if outcome.stuck]
            self._fail(f"ranks {[o.rank for o in stuck]} hung" if stuck else f"{len(failed)} ranks failed", outcomes)
        return [outcome.result for outcome in outcomes]

    def _fail(self, what: str, outcomes: list[Outcome]) -> None:
        story = "\n".join(map(str, outcomes))
        raised = [outcome for outcome in outcomes if outcome.error is not None and not outcome.stuck]
        silent = [outcome for outcome in outcomes if outcome.error is None and not outcome.ok]
        first = min(raised, key=lambda outcome: outcome.ended_at).error if raised and not silent else None
        if first is None or isinstance(first, KeyboardInterrupt):  # which would end the test run
            raise RankError(f"{what}\n{story}")
        first.__cause__ = RankError(f"{what}\n{story}")
        raise first

    @property
    def _running(self) -> list[Outcome]:
        return [outcome for outcome in self._outcomes if outcome.status is None]

    def _read_sockets(self, deadline: float) -> bool:
        """Read once what ranks and nursery have sent; whether there was anything."""
        if self._nursery.note_ends(self._outcomes):
            return True
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([*self._sockets, self._nursery.control], [], [], left)
        for one in ready:
            if one is self._nursery.control:
                self._nursery.read()
                continue
            rank = self._sockets[one]
            data = one.recv(1 << 20)
            if not data:
                one.close()
                del self._sockets[one]
                continue
            inbox = self._inboxes[one]
            inbox += data
            while (message := _next_message(inbox)) is not None:
                self._take(rank, message)
        return bool(ready)

    def _take(self, rank: int, message: bytes) -> None:
        kind, *rest = pickle.loads(message)
        outcome = self._outcomes[rank]
        if kind == "point":
            self._reports[rank].append(rest[0])
        else:
            payload, outcome.traceback, outcome.elapsed, outcome.ended_at = rest
            try:
                value = pickle.loads(payload)
            except Exception as error:  # not to be made again here
                value = error if kind == "result" else RankError(outcome.traceback)
            if kind == "result":
                outcome.result = value
            else:
                outcome.error = value

    def _end_by_force(self, stuck: list[Outcome]) -> None:
        for outcome in stuck:
            os.kill(outcome.pid, signal.SIGUSR1)  # faulthandler writes where it is
        # A rank that is stopped, or blocked in the kernel, writes nothing; so do not wait for long.
        deadline = time.monotonic() + 0.5
        silent = [self._dumps[outcome.rank] for outcome in stuck]
        while silent and time.monotonic() < deadline:
            self._read_sockets(time.monotonic() + 0.02)
            silent = [dump for dump in silent if os.fstat(dump).st_size == 0]
        time.sleep(0.02)  # one that has begun to write has soon done
        for outcome in stuck:
            os.kill(outcome.pid, signal.SIGKILL)
        while self._running:
            self._read_sockets(time.monotonic() + 1)


_gangs: list[Gang] = []


def end_all() -> list[Gang]:
    """End the ranks that a test has left running; their gangs."""
    left = list(_gangs)
    for gang in left:
        gang.outcomes(timeout=0)
    return left


# ---- the nursery -----------------------------------------------------------------------------------------------


class Nursery:
    """The test process's end: requests forks, receives the ends of ranks.

    It is a fork of this process; or, with ``path``, a new interpreter, which finds the `shmring` of that directory and
    whatever else this process can import.
    """

    def __init__(self, path: str | None = None) -> None:
        self.control, theirs = socket.socketpair()
        self._inbox = bytearray()
        self._ends: dict[int, tuple[int, float]] = {}
        self._pid = os.fork()
        if self._pid == 0:
            self.control.close()
            try:
                if path is not None:
                    os.set_inheritable(theirs.fileno(), True)
                    found = f"import sys; sys.path[:] = {[path, *sys.path]!r}"
                    serve = f"from support import harness; harness.serve({theirs.fileno()})"
                    os.execv(sys.executable, [sys.executable, "-c", f"{found}; {serve}"])
                _nurse(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def fork(self, task: bytes, sockets: list[int], dumps: list[int]) -> list[int]:
        """Fork one rank for each socket; their process ids."""
        _send(self.control, ("fork", task, len(sockets)))
        for rank in range(len(sockets)):
            socket.send_fds(self.control, [b"."], [sockets[rank], dumps[rank]])
        return self._answer("forked")

    def reap(self, pids: list[int]) -> None:
        """Reap these ended processes; their ids may be used again."""
        _send(self.control, ("reap", pids))
        self._answer("reaped")
        for pid in pids:
            self._ends.pop(pid, None)

    def note_ends(self, outcomes: list[Outcome]) -> bool:
        """Store the ends received so far in the outcomes; whether any of them was new."""
        new = [outcome for outcome in outcomes if outcome.status is None and outcome.pid in self._ends]
        for outcome in new:
            outcome.status, ended_at = self._ends[outcome.pid]
            outcome.ended_at = outcome.ended_at or ended_at
        return bool(new)

    def close(self) -> None:
        """End the nursery."""
        self.control.close()
        os.waitpid(self._pid, 0)

    def _answer(self, awaited: str) -> Any:
        while True:
            if (answer := self.read()) is not None:
                assert answer[0] == awaited, answer
                return answer[1]

    def read(self) -> tuple | None:
        """Read once; note ends, return an answer if there was one."""
        data = self.control.recv(1 << 16)
        assert data, "the nursery is gone"
        self._inbox += data
        answer = None
        while (message := _next_message(self._inbox)) is not None:
            parts = pickle.loads(message)
            if parts[0] == "ended":
                self._ends[parts[1]] = parts[2:]
            else:
                answer = parts
        return answer


_nursery: Nursery | None = None


def nursery() -> Nursery:
    """The nursery of this test run, made at first use."""
    global _nursery
    if _nursery is None:
        load_shmring()
        _nursery = Nursery()
    return _nursery


@contextlib.contextmanager
def nursery_with(path: str):
    """Have ranks run the `shmring` that lies in the directory ``path``, in a nursery of its own."""
    global _nursery
    usual = _nursery
    _nursery = Nursery(path)
    try:
        yield
    finally:
        _nursery.close()
        _nursery = usual


def serve(control: int) -> None:
    """Be the nursery at the other end of this socket, in a new interpreter."""
    load_shmring()
    _nurse(socket.socket(fileno=control))


def load_shmring() -> None:
    """Load what `shmring` loads at first use, so that forked ranks have it."""
    import shmring

    for name in shmring.__all__:
        getattr(shmring, name)


def close_nursery() -> None:
    """End it, if there is one."""
    global _nursery
    if _nursery is not None:
        _nursery.close()
        _nursery = None


def _nurse(control: socket.socket) -> None:
    """The nursery's main loop: one request or end of a rank after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test process; its end closes the socket
    signal.signal(signal.SIGCHLD, lambda *_: None)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    signal.set_wakeup_fd(write_end)
    gc.collect()
    gc.freeze()  # ranks share these pages; the collector must not touch, and so copy, them
    inbox = bytearray()
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([control, read_end], [], [])
        if read_end in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(read_end, 4096)
            for pid in list(running):
                end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if end is not None:
                    running.remove(pid)
                    status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                    _send(control, ("ended", pid, status, time.monotonic()))
        if control in ready:
            # One message at a time: the descriptors that follow a request must not be read as bytes.
            request = _receive(control, inbox)
            if request is None:
                return
            if request[0] == "fork":
                pids = _fork_ranks(control, request[1], request[2])
                running.update(pids)
                _send(control, ("forked", pids))
                os.write(write_end, b".")  # one may have ended already
            else:
                for pid in request[1]:
                    os.waitpid(pid, 0)
                _send(control, ("reaped", None))


def _fork_ranks(control: socket.socket, task: bytes, n: int) -> list[int]:
    ends = []
    for _ in range(n):
        _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        ends.append(descriptors)
    pids = []
    for rank, (end, dump) in enumerate(ends):
        pid = os.fork()
        if pid == 0:
            control.close()
            for other in ends:
                if other[0] != end:
                    os.close(other[0])
            _be_rank(rank, task, socket.socket(fileno=end), dump)
        pids.append(pid)
    for descriptors in ends:
        for descriptor in descriptors:
            os.close(descriptor)
    return pids


def _be_rank(rank: int, task: bytes, outbox: socket.socket, dump: int) -> None:
    """A rank's whole life; does not return."""
    global _to_test
    _to_test = outbox
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(AttributeError):  # die with the nursery, whatever kills it
            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
        file = os.fdopen(os.dup(dump), "w")
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        sys.stdin = io.StringIO()
        fn, args, env = pickle.loads(task)
        os.environ.update(env)
        raised: list[BaseException] = []
        threading.excepthook = lambda failed: raised.append(failed.exc_value)
        started = time.monotonic()
        try:
            kind, value, text = "result", fn(rank, *args), ""
            if raised:  # in a thread of the rank
                raise raised[0]
        except BaseException as error:
            kind, value = "error", error
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        ended = time.monotonic()
        payload = b""
        try:
            payload = pickle.dumps(value)
        except Exception as error:
            text = text or "".join(traceback.format_exception(type(error), error, error.__traceback__))
            kind = "error"
        _send(outbox, (kind, payload, text, ended - started, ended))
        status = 0 if kind == "result" else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            if "shmring.core.memory.names" in sys.modules:  # what only a traceback refers to, as Python's own end does
                sys.modules["shmring.core.memory.names"]._release_all()
        os._exit(status)


# ---- messages: a length, then a pickle -----------------------------------------------------------------------------

_to_test: socket.socket
_LENGTH = struct.Struct("=Q")


def _send(to: socket.socket, message: tuple) -> None:
    data = pickle.dumps(message)
    to.sendall(_LENGTH.pack(len(data)) + data)


def _next_message(inbox: bytearray) -> bytes | None:
    if len(inbox) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(inbox)
    if len(inbox) < _LENGTH.size + length:
        return None
    message = bytes(inbox[_LENGTH.size : _LENGTH.size + length])
    del inbox[: _LENGTH.size + length]
    return message


def _receive(source: socket.socket, inbox: bytearray) -> tuple | None:
    """Exactly one message; None when the other end is closed."""
    while (message := _next_message(inbox)) is None:
        wanted = _LENGTH.size if len(inbox) < _LENGTH.size else _LENGTH.size + _LENGTH.unpack_from(inbox)[0]
        data = source.recv(wanted - len(inbox))
        if not data:
            return None
        inbox += data
    return pickle.loads(message)


# ---- leaks ---------------------------------------------------------------------------------------------------------


def mark_names() -> None:
    """Give this test run a file prefix of its own.

    All processes that the run starts inherit it and put it into every name they make in shared memory. So names with
    it are this run's, and names without it are not: those of other programs, or of another run of these tests.
    """
    os.environ["SHMRING_FILE_PREFIX"] = f"test{os.getpid()}_{secrets.token_hex(4)}"


def shared_names() -> set[str]:
    """Names in shared memory that processes of this test run have made (`mark_names`)."""
    marker = os.environ["SHMRING_FILE_PREFIX"]
    return {name for name in os.listdir("/dev/shm") if marker in name}


def open_files() -> dict[int, str]:
    """Descriptors of this process and what they are, without the report that a sanitizer may have opened."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
    if os.environ.get("SHMRING_SANITIZED"):
        return {number: path for number, path in found.items() if "/reports/sanitizer." not in path}
    return found


def fail_on_leaks(
    names_before: set[str], files_before: dict[int, str], threads_before: set, patience: float = 60
) -> None:
    """Fail the test if names, descriptors or threads are left that were not there before."""
    deadline = time.monotonic() + patience
    # A rank killed a moment ago may still hold its names.
    while (names := shared_names() - names_before) and time.monotonic() < deadline:
        time.sleep(0.01)
    if names:
        pytest.fail(f"left in shared memory: {sorted(names)}", pytrace=False)
    threads = set(threading.enumerate()) - threads_before
    for thread in threads:  # one whose work is over may not have ended yet
        thread.join(max(0.0, deadline - time.monotonic()))
    threads = {thread for thread in threads if thread.is_alive()}
    if threads:
        pytest.fail(f"threads left running: {sorted(thread.name for thread in threads)}", pytrace=False)
    if len(open_files()) > len(files_before):
        gc.collect()  # an object in a cycle may hold them
        # A thread that is not one of Python's may not have closed its own yet.
        while len(files := open_files()) > len(files_before) and time.monotonic() < deadline:
            time.sleep(0.01)
        if len(files) > len(files_before):
            new = {fd: what for fd, what in files.items() if fd not in files_before}
            pytest.fail(f"descriptors left open: {new}", pytrace=False)
    if closed := {0, 1, 2} & files_before.keys() - open_files().keys():
        pytest.fail(f"standard streams closed: {closed}", pytrace=False)
