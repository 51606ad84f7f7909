"""Channels and queues of shmring."""

from __future__ import annotations

import numpy as np

import shmring

from .channel import BATCH, CAPACITY_NBYTES, RECORD
from .channel import Backend as Base


class Backend(Base):
    """`shmring.channel`, or `shmring.Queue` if the kind is ``queue``; batches of records by a channel of records."""

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        self.is_queue = task["kind"] == "queue"
        self.version = f"shmring {shmring.__version__}"

    @staticmethod
    def pair(op: str, nbytes: int, kind: str):
        if kind == "queue":
            return [shmring.Queue(capacity_nbytes=CAPACITY_NBYTES) for _ in range(2)]
        dtype = RECORD if op == "records" else None
        return [shmring.channel(CAPACITY_NBYTES, dtype=dtype) for _ in range(2)]

    def open(self, ends, nbytes: int) -> None:
        out, back = ends[self.rank], ends[1 - self.rank]
        if self.is_queue:
            self.send, self.recv = out.put, back.get
        else:
            self.sender, self.receiver = out[0].take(), back[1].take()
            self.send, self.recv = self.sender.send, self.receiver.recv

    def send_records(self, records: np.ndarray) -> None:
        (self.send if self.is_queue else self.sender.send_many)(records)

    def recv_records(self) -> np.ndarray:
        if self.is_queue:
            return self.recv()
        found = self.receiver.recv_many(BATCH)
        while len(found) < BATCH:
            found = np.concatenate([found, self.receiver.recv_many(BATCH - len(found))])
        return found

    def recv_within(self, seconds: float) -> object:
        return self.recv(timeout=seconds)
