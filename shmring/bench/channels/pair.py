"""Two processes connected by one library: this one, and a child on another processor that carries out its requests."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from shmring.bench.channels.peers import Peer

ANSWER_S = 20.0


class Pair:
    """This process is side 0. Between two requests the child waits, and uses no processor.

    Parameters
    ----------
    kind : type of Peer
    longest_nbytes : int
        Of the messages.
    processors : tuple of int
        Of this process, and of the child; the same one twice if there is only one.
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
        self.call("ready")

    def start(self, *words: Any) -> None:
        """Send the child a request: the name of a task, and its arguments."""
        self.control.send(words)

    def result(self) -> Any:
        """The child's answer to the last request; raises the child's error, or if no answer comes in `ANSWER_S`."""
        if not self.control.poll(ANSWER_S):
            raise TimeoutError(f"the other process has not answered for {ANSWER_S:g} s")
        answer = self.control.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, *words: Any) -> Any:
        """`start`, then `result`."""
        self.start(*words)
        return self.result()

    def kill(self) -> float:
        """Kill the child, and return the time."""
        now = time.perf_counter()
        os.kill(self.pid, signal.SIGKILL)
        return now

    def end(self) -> None:
        """End the child, whatever it does."""
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
    """Processor seconds of this process while it waits for one message, and the length of the wait in seconds."""
    used, started = time.process_time(), time.perf_counter()
    peer.recv()
    return time.process_time() - used, time.perf_counter() - started


def _send_once(peer: Peer) -> None:
    peer.send(bytes(64))


_TASKS: dict[str, Callable[..., Any]] = {
    "ready": _ready,
    "take": _take,
    "echo": _echo,
    "records": _take_records,
    "idle": _idle,
    "send": _send_once,
}
