"""faster-fifo's queues."""

from __future__ import annotations

from typing import Any

import faster_fifo
import numpy as np

from .channel import CAPACITY_NBYTES
from .channel import Backend as Base


class Backend(Base):
    """`faster_fifo.Queue`, without pickle, which bytes do not need."""

    @staticmethod
    def pair(op: str, nbytes: int, kind: str):
        capacity = max(CAPACITY_NBYTES, 2 * nbytes + 4096)  # what is longer than its ring never fits
        return [faster_fifo.Queue(capacity, loads=bytes, dumps=bytes) for _ in range(2)]

    def open(self, ends, nbytes: int) -> None:
        self.out, self.back = ends[self.rank], ends[1 - self.rank]

    def send(self, message: Any) -> None:
        if isinstance(message, np.ndarray):
            message = message.view("u1")
        self.out.put(message, timeout=1000)  # its default gives up after ten seconds

    def recv(self) -> bytes:
        return self.recv_within(1000)

    def recv_within(self, seconds: float) -> bytes:
        return self.back.get(timeout=seconds)
