"""Collectives over pipes of multiprocessing: a hand-written version with the standard library and NumPy.

Textbook trees for small arrays and rings for large ones. A pipe holds some hundred KiB, so of two ranks that send to
each other one must receive first; odd ranks do.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import platform
from typing import ClassVar

import numpy as np

from .backend import Backend as Base
from .backend import Unsupported

RING_FROM = 64 << 10  # bytes; below, a tree has fewer steps


def main(address: str, size: str) -> int:
    """Start the ranks, with a pipe between every two of them, and wait for them."""
    context = multiprocessing.get_context("fork")
    ends: list[dict] = [{} for _ in range(int(size))]
    for one, other in itertools.combinations(range(len(ends)), 2):
        ends[one][other], ends[other][one] = context.Pipe()
    ranks = [context.Process(target=_be_rank, args=(address, rank, ends)) for rank in range(len(ends))]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


def _be_rank(address: str, rank: int, ends: list[dict]) -> None:
    from .control import Control
    from .rank import serve

    for other, theirs in enumerate(ends):
        if other != rank:
            for connection in theirs.values():
                connection.close()
    Backend.ends = ends[rank]
    os.environ["RANK"] = str(rank)
    serve(Control(address, rank), rank)


class Backend(Base):
    """A rank with a pipe to every other one."""

    ends: ClassVar[dict] = {}
    version = f"Python {platform.python_version()}"
    calls: ClassVar = {
        "all_reduce": "pipes.all_reduce(x)",
        "reduce": "pipes.reduce(x)",
        "broadcast": "pipes.broadcast(x)",
        "all_gather": "pipes.all_gather(x, y)",
        "gather": "pipes.gather(x, y)",
        "reduce_scatter": "pipes.reduce_scatter(x, y)",
        "scatter": "pipes.scatter(x, y)",
        "all_to_all": "pipes.all_to_all(x, y)",
        "barrier": "pipes.barrier()",
        "ping_pong": (
            "pipes.send(x, partner); pipes.receive(y, partner)",
            "pipes.receive(y, partner); pipes.send(x, partner)",
        ),
    }

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        self.names = {"pipes": self}

    def statement(self, problem) -> str:
        if problem.number.name == "bfloat16":
            raise Unsupported("NumPy has no bfloat16")
        return super().statement(problem)

    def send(self, x: np.ndarray, peer: int) -> None:
        self.ends[peer].send_bytes(x)

    def receive(self, x: np.ndarray, peer: int) -> None:
        self.ends[peer].recv_bytes_into(x)

    def exchange(self, x: np.ndarray, to: int, y: np.ndarray, source: int) -> None:
        """Send ``x`` and receive ``y``, in an order without deadlocks."""
        if self.rank % 2:
            self.receive(y, source)
            self.send(x, to)
        else:
            self.send(x, to)
            self.receive(y, source)

    def reduce(self, x: np.ndarray) -> None:
        """A binomial tree; ``x`` of inner ranks holds partial sums afterwards."""
        part = np.empty_like(x)
        step = 1
        while step < self.size:
            if self.rank & step:
                self.send(x, self.rank - step)
                return
            if self.rank + step < self.size:
                self.receive(part, self.rank + step)
                x += part
            step *= 2

    def broadcast(self, x: np.ndarray) -> None:
        """The same tree, downwards."""
        step = 1
        while step < self.size and not self.rank & step:
            step *= 2
        if self.rank:
            self.receive(x, self.rank - step)
        while (step := step // 2) > 0:
            if self.rank + step < self.size:
                self.send(x, self.rank + step)

    def all_reduce(self, x: np.ndarray) -> None:
        """Up the tree and down again, or around the ring twice."""
        if x.nbytes < RING_FROM or x.size < self.size:
            self.reduce(x)
            self.broadcast(x)
            return
        shares = np.array_split(x, self.size)
        self._ring_reduce(shares, last=self.rank + 1)
        self._ring_gather(shares, first=self.rank + 1)

    def reduce_scatter(self, x: np.ndarray, y: np.ndarray) -> None:
        """Around the ring, on a copy of the input."""
        shares = np.array_split(x.copy(), self.size)
        self._ring_reduce(shares, last=self.rank)
        y[...] = shares[self.rank]

    def all_gather(self, x: np.ndarray, y: np.ndarray) -> None:
        """Around the ring."""
        shares = np.array_split(y, self.size)
        shares[self.rank][...] = x
        self._ring_gather(shares, first=self.rank)

    def gather(self, x: np.ndarray, y: np.ndarray) -> None:
        """All ranks send to rank 0."""
        if self.rank:
            self.send(x, 0)
            return
        shares = np.array_split(y, self.size)
        shares[0][...] = x
        for peer in range(1, self.size):
            self.receive(shares[peer], peer)

    def scatter(self, x: np.ndarray, y: np.ndarray) -> None:
        """Rank 0 sends to all ranks."""
        if self.rank:
            self.receive(y, 0)
            return
        shares = np.array_split(x, self.size)
        for peer in range(1, self.size):
            self.send(shares[peer], peer)
        y[...] = shares[0]

    def all_to_all(self, x: np.ndarray, y: np.ndarray) -> None:
        """Exchange with one peer after the other in ascending order, which cannot deadlock."""
        mine, theirs = np.array_split(x, self.size), np.array_split(y, self.size)
        theirs[self.rank][...] = mine[self.rank]
        for peer in range(self.size):
            if peer != self.rank:
                self._swap(mine[peer], theirs[peer], peer)

    def barrier(self) -> None:
        """An all-reduce of one byte."""
        self.all_reduce(np.zeros(1, np.uint8))

    def _ring_reduce(self, shares: list[np.ndarray], last: int) -> None:
        """Afterwards ``shares[last]`` is the sum over all ranks."""
        ahead, behind = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        part = np.empty(max(share.size for share in shares), shares[0].dtype)
        for step in range(self.size - 1, 0, -1):
            given, taken = shares[(last + step) % self.size], shares[(last + step - 1) % self.size]
            self.exchange(given, ahead, part[: taken.size], behind)
            taken += part[: taken.size]

    def _ring_gather(self, shares: list[np.ndarray], first: int) -> None:
        ahead, behind = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for step in range(self.size - 1):
            self.exchange(shares[(first - step) % self.size], ahead, shares[(first - step - 1) % self.size], behind)

    def _swap(self, x: np.ndarray, y: np.ndarray, peer: int) -> None:
        if self.rank < peer:
            self.send(x, peer)
            self.receive(y, peer)
        else:
            self.receive(y, peer)
            self.send(x, peer)
