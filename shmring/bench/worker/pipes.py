"""Collectives over pipes of multiprocessing, with NumPy, as programs write them by hand: through rank 0."""

from __future__ import annotations

import platform
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from typing import Any, ClassVar

import numpy as np

from .backend import Backend as Base
from .backend import Unsupported


class Pipes:
    """A rank with a pipe to every other one. The ranks, which all call, meet in a folder that no other user can enter.

    ``wait`` is a barrier.
    """

    def __init__(self, rank: int, size: int, folder: str, wait: Callable[[], object]) -> None:
        self.rank, self.size = rank, size
        self.peers: dict[int, Any] = {}
        with Listener(f"{folder}/{rank}", "AF_UNIX", backlog=size) as listener:
            wait()
            for peer in range(rank):
                self.peers[peer] = Client(f"{folder}/{peer}", "AF_UNIX")
                self.peers[peer].send(rank)
            while len(self.peers) < size - 1:
                end = listener.accept()
                self.peers[end.recv()] = end

    def send(self, x: np.ndarray, peer: int) -> None:
        self.peers[peer].send_bytes(x)

    def recv(self, x: np.ndarray, peer: int) -> None:
        self.peers[peer].recv_bytes_into(x)

    def gather(self, x: np.ndarray, parts: list[np.ndarray]) -> None:
        if self.rank:
            self.send(x, 0)
        else:
            parts[0][...] = x
            for peer in self.peers:
                self.recv(parts[peer], peer)

    def scatter(self, parts: list[np.ndarray], y: np.ndarray) -> None:
        if self.rank:
            self.recv(y, 0)
        else:
            for peer in self.peers:
                self.send(parts[peer], peer)
            y[...] = parts[0]

    def reduce(self, x: np.ndarray) -> None:
        part = np.empty_like(x)
        for peer in self.peers if self.rank == 0 else ():
            self.recv(part, peer)
            x += part
        if self.rank:
            self.send(x, 0)

    def broadcast(self, x: np.ndarray) -> None:
        self.scatter([x] * self.size, x)

    def all_reduce(self, x: np.ndarray) -> None:
        self.reduce(x)
        self.broadcast(x)

    def all_to_all(self, sent: list[np.ndarray], parts: list[np.ndarray]) -> None:
        parts[self.rank][...] = sent[self.rank]
        for peer in sorted(self.peers):  # in ascending order, which cannot deadlock
            if self.rank < peer:
                self.send(sent[peer], peer)
                self.recv(parts[peer], peer)
            else:
                self.recv(parts[peer], peer)
                self.send(sent[peer], peer)


class Backend(Base):
    """A rank with `Pipes`; the folder of the competitor is the current one."""

    version = f"Python {platform.python_version()}"
    calls: ClassVar = {
        "all_reduce": "pipes.all_reduce(x)",
        "reduce": "pipes.reduce(x)",
        "broadcast": "pipes.broadcast(x)",
        "all_gather": "pipes.gather(x, parts); pipes.broadcast(y)",
        "gather": "pipes.gather(x, parts)",
        "reduce_scatter": "total[:] = x; pipes.reduce(total); pipes.scatter(parts, y)",
        "scatter": "pipes.scatter(parts, y)",
        "all_to_all": "pipes.all_to_all(sent, parts)",
        "barrier": "pipes.all_reduce(total)",
        "ping_pong": (
            "pipes.send(x, partner); pipes.recv(y, partner)",
            "pipes.recv(y, partner); pipes.send(x, partner)",
        ),
    }

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        self.pipes = Pipes(rank, self.size, ".", barrier.wait)

    def statement(self, problem) -> str:
        if problem.number.name == "bfloat16":
            raise Unsupported("NumPy has no bfloat16")
        total = np.zeros(max(1, problem.x.size), problem.x.dtype)
        whole = {"reduce_scatter": total, "scatter": problem.x}.get(problem.op, problem.y)
        parts, sent = np.array_split(whole, self.size), np.array_split(problem.x, self.size)
        self.names = {"pipes": self.pipes, "total": total, "parts": parts, "sent": sent}
        return super().statement(problem)
