"""Two processes with one peer between them: this one, and a child on another processor that does what it is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from shmring.bench.channels.peers import Peer

HEAR_S = 20.0


class Pair:
    """This process is side 0. Between two calls the child waits for a word, and uses no processor.

    Parameters
    ----------
    kind : type of Peer
    longest_nbytes : int
        Of the messages.
    processors : tuple of int
        Of this process, and of the child; the same twice if there is but one.
    """

    def __init__(self, kind: type[Peer], longest_nbytes: int, processors: tuple[int, int]) -> None:
        self.peer = kind(longest_nbytes)
        self.control, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                self.control.close()
                os.sched_setaffinity(0, {processors[1]})
                self.peer.enter(1)
                _serve(self.peer, theirs)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        self.peer.enter(0)
        self.ask("ready")

    def tell(self, *words: Any) -> None:
        """Give it something to do."""
        self.control.send(words)

    def hear(self) -> Any:
        """What it says when it has done so; raises if it died, or says nothing for long."""
        if not self.control.poll(HEAR_S):
            raise TimeoutError("the other process does not answer")
        answer = self.control.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, *words: Any) -> Any:
        """`tell`, then `hear`."""
        self.tell(*words)
        return self.hear()

    def kill(self) -> float:
        """Kill the child; the moment."""
        now = time.perf_counter()
        os.kill(self.pid, signal.SIGKILL)
        return now

    def end(self) -> None:
        """End the child, however it stands."""
        self.control.close()
        until = time.monotonic() + 1
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.001)


def _serve(peer: Peer, control: Connection) -> None:
    while True:
        try:
            what, *args = control.recv()
        except (EOFError, OSError):
            return
        try:
            answer = _TASKS[what](peer, *args)
        except Exception as error:
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        control.send(answer)


def _ready(peer: Peer) -> None:
    pass


def _take(peer: Peer, count: int, nbytes: int) -> None:
    recv = peer.recv
    for _ in range(count):
        message = recv()
    assert memoryview(message).nbytes == nbytes


def _echo(peer: Peer, count: int) -> None:
    recv, send = peer.recv, peer.send
    for _ in range(count):
        send(recv())


def _take_records(peer: Peer, count: int) -> None:
    while count > 0:
        count -= peer.recv_records()
    assert count == 0


def _idle(peer: Peer) -> tuple[float, float]:
    """Processor seconds of this process while it waits for one message, and how long that was."""
    used, started = time.process_time(), time.perf_counter()
    peer.recv()
    return time.process_time() - used, time.perf_counter() - started


def _speak_once(peer: Peer) -> None:
    peer.send(bytes(64))


_TASKS: dict[str, Callable[..., Any]] = {
    "ready": _ready,
    "take": _take,
    "echo": _echo,
    "records": _take_records,
    "idle": _idle,
    "speak": _speak_once,
}
