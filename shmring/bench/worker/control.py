"""The connection to the runner: orders and answers as lines of JSON, and the liveness pipe."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket


class Control:
    """The rank's end of the connection. It waits for orders in a blocking read, without using the processor."""

    def __init__(self, address: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect("\0" + address)
        self._inbox = b""
        self.answer(rank=rank, pid=os.getpid())

    def take_task(self) -> tuple[dict, int]:
        """The task of this rank, and the descriptor of the start barrier's page."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 65536, 2)
        if len(descriptors) != 2:
            raise SystemExit("the benchmark runner has ended")
        page, liveness = descriptors
        die_with(liveness)
        self._inbox = data
        return self.order(), page

    def order(self) -> dict:
        """Wait for the next order; exits if the runner is gone."""
        while b"\n" not in self._inbox:
            data = self._socket.recv(65536)
            if not data:
                raise SystemExit("the benchmark runner has ended")
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        return json.loads(line)

    def answer(self, **facts) -> None:
        """Send an answer."""
        self._socket.sendall(json.dumps(facts).encode() + b"\n")


def die_with(liveness: int) -> None:
    """Make the kernel end this process when the runner ends, for any reason and whatever this process is doing.

    Nothing is ever written to the pipe. When the runner's end closes, the kernel sends SIGIO, which by default ends the
    process. No thread is needed.
    """
    fcntl.fcntl(liveness, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(liveness, fcntl.F_SETFL, fcntl.fcntl(liveness, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([liveness], [], [], 0)[0]:  # it was closed before
        raise SystemExit("the benchmark runner has ended")
