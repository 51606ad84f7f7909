"""Collectives over pipes of multiprocessing: what is written by hand with the standard library and NumPy, by rank 0."""

from __future__ import annotations

import itertools
import multiprocessing
import platform
from typing import Any, ClassVar

import numpy as np

from .backend import Backend as Base
from .backend import Unsupported


class Backend(Base):
    """A rank with a pipe to every other one. Of two ranks that send to each other the higher one receives first."""

    ends: ClassVar[list[dict[int, Any]]] = []
    version = f"Python {platform.python_version()}"
    calls: ClassVar = {
        "all_reduce": "pipes.reduce(x); pipes.broadcast(x)",
        "reduce": "pipes.reduce(x)",
        "broadcast": "pipes.broadcast(x)",
        "all_gather": "pipes.gather(x, parts); pipes.broadcast(y)",
        "gather": "pipes.gather(x, parts)",
        "reduce_scatter": "total[:] = x; pipes.reduce(total); pipes.scatter(parts, y)",
        "scatter": "pipes.scatter(parts, y)",
        "all_to_all": "pipes.all_to_all(sent, parts)",
        "barrier": "pipes.reduce(total); pipes.broadcast(total)",
        "ping_pong": (
            "pipes.send(x, partner); pipes.recv(y, partner)",
            "pipes.recv(y, partner); pipes.send(x, partner)",
        ),
    }

    @classmethod
    def connect(cls, task: dict) -> None:
        cls.ends = [{} for _ in range(task["size"])]
        for one, other in itertools.combinations(range(task["size"]), 2):
            cls.ends[one][other], cls.ends[other][one] = multiprocessing.Pipe()

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        for other, theirs in enumerate(self.ends):
            for end in theirs.values() if other != rank else ():
                end.close()
        self.peers = self.ends[rank]

    def statement(self, problem) -> str:
        if problem.number.name == "bfloat16":
            raise Unsupported("NumPy has no bfloat16")
        total = np.zeros(max(1, problem.x.size), problem.x.dtype)
        whole = {"reduce_scatter": total, "scatter": problem.x}.get(problem.op, problem.y)
        parts, sent = np.array_split(whole, self.size), np.array_split(problem.x, self.size)
        self.names = {"pipes": self, "total": total, "parts": parts, "sent": sent}
        return super().statement(problem)

    def send(self, x: np.ndarray, peer: int) -> None:
        self.peers[peer].send_bytes(x)

    def recv(self, x: np.ndarray, peer: int) -> None:
        self.peers[peer].recv_bytes_into(x)

    def reduce(self, x: np.ndarray) -> None:
        part = np.empty_like(x)
        for peer in self.peers if self.rank == 0 else ():
            self.recv(part, peer)
            x += part
        if self.rank:
            self.send(x, 0)

    def broadcast(self, x: np.ndarray) -> None:
        self.scatter([x] * self.size, x)

    def scatter(self, parts: list[np.ndarray], y: np.ndarray) -> None:
        for peer in self.peers if self.rank == 0 else ():
            self.send(parts[peer], peer)
        if self.rank:
            self.recv(y, 0)
        else:
            y[...] = parts[0]

    def gather(self, x: np.ndarray, parts: list[np.ndarray]) -> None:
        if self.rank:
            self.send(x, 0)
        else:
            parts[0][...] = x
            for peer in self.peers:
                self.recv(parts[peer], peer)

    def all_to_all(self, sent: list[np.ndarray], parts: list[np.ndarray]) -> None:
        parts[self.rank][...] = sent[self.rank]
        for peer in sorted(self.peers):  # in ascending order, which cannot deadlock
            first, second = (self.send, self.recv) if self.rank < peer else (self.recv, self.send)
            first((sent if self.rank < peer else parts)[peer], peer)
            second((parts if self.rank < peer else sent)[peer], peer)
