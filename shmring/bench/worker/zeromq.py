"""ZeroMQ through pyzmq."""

from __future__ import annotations

import queue

import zmq

from .channel import Backend as Base


class Backend(Base):
    """PAIR sockets over ipc, one pair for all rows."""

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        self.socket = zmq.Context().socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 0)
        (self.socket.connect if rank else self.socket.bind)(f"ipc://{task['folder']}/socket")

    def open(self, ends, nbytes: int) -> None:
        self.send, self.recv = self.socket.send, self.socket.recv

    def recv_within(self, seconds: float) -> bytes:
        if not self.socket.poll(int(seconds * 1000)):
            raise queue.Empty
        return self.recv()
