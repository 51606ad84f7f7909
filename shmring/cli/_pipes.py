"""An all-reduce over pipes of multiprocessing, for comparison in the demo.

Rank 0 receives all arrays, sums them in rank order and sends the sum back. The connections are Unix sockets, as those
of `multiprocessing.Pipe`; a listener makes them because the ranks are already running.
"""

from __future__ import annotations

import os
import secrets
from multiprocessing.connection import Client, Connection, Listener

import numpy as np

NKEY = 16
NADDRESS = 108  # the longest path of a Unix socket


class Star:
    """A connection from rank 0 to every other rank. A context manager."""

    def __init__(self, comm) -> None:
        self._connections: list[Connection] = []
        invitation = np.zeros(NKEY + NADDRESS, np.uint8)
        if comm.rank == 0:
            key = secrets.token_bytes(NKEY)
            with Listener(family="AF_UNIX", backlog=comm.size, authkey=key) as listener:
                text = key + os.fsencode(listener.address)
                invitation[: len(text)] = np.frombuffer(text, np.uint8)
                comm.broadcast(invitation)
                arrived = {}
                for _ in range(comm.size - 1):
                    connection = listener.accept()
                    arrived[connection.recv()] = connection
            self._connections = [arrived[rank] for rank in range(1, comm.size)]
        else:
            comm.broadcast(invitation)
            text = invitation.tobytes()
            self._connections = [Client(os.fsdecode(text[NKEY:].rstrip(b"\0")), authkey=text[:NKEY])]
            self._connections[0].send(comm.rank)
        self._is_root = comm.rank == 0

    def all_reduce(self, x: np.ndarray) -> np.ndarray:
        """Sum ``x`` over all ranks, in place."""
        if self._is_root:
            theirs = np.empty_like(x)
            for connection in self._connections:
                connection.recv_bytes_into(theirs)
                x += theirs
            for connection in self._connections:
                connection.send_bytes(x.data)
        else:
            self._connections[0].send_bytes(x.data)
            self._connections[0].recv_bytes_into(x)
        return x

    def __enter__(self) -> Star:
        return self

    def __exit__(self, *exc_info) -> None:
        for connection in self._connections:
            connection.close()
