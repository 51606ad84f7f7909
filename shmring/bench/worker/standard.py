"""Pipes and queues of multiprocessing."""

from __future__ import annotations

import multiprocessing
import queue
from typing import Any

from .channel import CAPACITY_NBYTES
from .channel import Backend as Base


class Backend(Base):
    """`multiprocessing.Pipe`, `Queue` or `SimpleQueue`, as the kind says."""

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        self.kind = task["kind"]

    @staticmethod
    def pair(op: str, nbytes: int, kind: str):
        if kind == "pipe":
            return multiprocessing.Pipe()
        if kind == "simple queue":
            return [multiprocessing.SimpleQueue() for _ in range(2)]
        # Bounded as the others are: else the time would be that of a copy into the buffer of its feeder thread.
        return [multiprocessing.Queue(max(2, CAPACITY_NBYTES // max(nbytes, 1024))) for _ in range(2)]

    def open(self, ends, nbytes: int) -> None:
        if self.kind == "pipe":
            ends[1 - self.rank].close()
            self.end = ends[self.rank]
            self.send, self.recv = self.end.send_bytes, self.end.recv_bytes
        else:
            self.send, self.recv = ends[self.rank].put, ends[1 - self.rank].get
            self.end = None if self.kind == "queue" else ends[1 - self.rank]._reader

    def recv_within(self, seconds: float) -> Any:
        if self.end is None:
            return self.recv(timeout=seconds)
        if not self.end.poll(seconds):
            raise queue.Empty
        return self.recv()
