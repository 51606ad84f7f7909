"""The line to the conductor: orders in, answers out, both as lines of JSON; and the liveness."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket


class Control:
    """A rank's end. Waiting for an order is a blocking read: it costs no processor time while others are timed."""

    def __init__(self, address: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect("\0" + address)
        self._inbox = b""
        self.answer(rank=rank, pid=os.getpid())

    def take_task(self) -> tuple[dict, int]:
        """What this rank shall be, and the descriptor of the start line's page."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 65536, 2)
        if len(descriptors) != 2:
            raise SystemExit("the conductor is gone")
        page, liveness = descriptors
        die_with(liveness)
        self._inbox = data
        return self.order(), page

    def order(self) -> dict:
        """The next order; asleep until it comes. Without a conductor there is nothing left to do."""
        while b"\n" not in self._inbox:
            data = self._socket.recv(65536)
            if not data:
                raise SystemExit("the conductor is gone")
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        return json.loads(line)

    def answer(self, **facts) -> None:
        """Send an answer."""
        self._socket.sendall(json.dumps(facts).encode() + b"\n")


def die_with(liveness: int) -> None:
    """Have the kernel end this process when the conductor does, of whatever cause and whatever this process is in.

    Nothing is ever written into the liveness. When the conductor's end of it closes, the kernel sends SIGIO, and what
    that does to a process that has not asked for anything else is end it. No thread waits for it.
    """
    fcntl.fcntl(liveness, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(liveness, fcntl.F_SETFL, fcntl.fcntl(liveness, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([liveness], [], [], 0)[0]:  # it had closed before
        raise SystemExit("the conductor is gone")
