"""Connections: the standard library's, with a ring in shared memory for each direction."""

from __future__ import annotations

import io
import os
import pickle
import socket
from multiprocessing import connection as _standard
from multiprocessing import reduction
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from shmring.channels.half_pipe import create_half, open_half
from shmring.core.base.timeouts import at_least_0
from shmring.core.memory.descriptor import above_standard, passed_on
from shmring.core.objects.codec import OUT_OF_BAND_OF_BLOCK_NBYTES, Dumped, dump, is_plain, load
from shmring.errors import BlockLostError, ObjectError

__all__ = ["Client", "Connection", "Listener", "Pipe", "RingConnection", "wait"]

CAPACITY_NBYTES = 1 << 18  # of a direction of a pipe; reserved at once, and a program may have hundreds of pipes
_FAST_NBYTES = 1 << 16  # bytes that are copied into one object, which is quicker to send than a buffer


class RingConnection(Connection):
    """One end of a pipe.

    Parameters
    ----------
    handle : int
        The descriptor of the connection, an end of the pipe's socket pair. The connection owns it.
    incoming, outgoing : optional
        Memory of the directions in which the connection receives and sends (channels/half_pipe.pyx).
    """

    def __init__(self, handle: int, incoming: Any = None, outgoing: Any = None) -> None:
        handle = above_standard(handle)
        super().__init__(handle, incoming is not None, outgoing is not None)
        self._incoming = incoming and open_half(incoming, handle)
        self._outgoing = outgoing and open_half(outgoing, handle)

    def send(self, obj: object) -> None:
        """Send an object.

        Parameters
        ----------
        obj : object
            Anything that pickles. It may be changed after the call.

        Raises
        ------
        BrokenPipeError
            No process is left at the other end.
        OSError
            The connection is closed, or only receives.
        Exception
            An error of pickling. Nothing was sent.
        """
        self._check_closed()
        self._check_writable()
        try:
            content = dumps(obj)
        except ObjectError as error:
            raise error.__cause__ from None
        self._outgoing.send(content)

    def recv(self) -> Any:
        """Wait for the next object.

        Returns
        -------
        object
            A copy of the object sent; its arrays own their memory.

        Raises
        ------
        EOFError
            All objects were received, and no process is left at the other end.
        OSError
            The connection is closed, or only sends.
        Exception
            An error of unpickling. The object was received.
        """
        self._check_closed()
        self._check_readable()
        return loads(self._incoming.recv())

    def fileno(self) -> int:
        """The descriptor for `wait`, ``select`` and event loops: readable while there is an object to receive.

        Returns
        -------
        int
        """
        self._check_closed()
        if self._incoming is not None:
            return self._incoming.fileno()
        return self._handle

    def _send_bytes(self, buf: memoryview) -> None:
        self._outgoing.send(bytes(buf) if len(buf) <= _FAST_NBYTES else buf.cast("B"))

    def _recv_bytes(self, maxsize: int | None = None) -> io.BytesIO | None:
        content = self._incoming.recv()
        if not isinstance(content, bytes):  # sent by send(): return one stream, without buffers beside it
            content = reduction.ForkingPickler.dumps(loads(content))
        if maxsize is not None and len(content) > maxsize:
            return None
        result = io.BytesIO(content)
        result.seek(0, os.SEEK_END)
        return result

    def _poll(self, timeout: float | None) -> bool:
        return self._incoming.poll(timeout)

    def _close(self, _close: Any = os.close) -> None:
        halves = [half for half in (self._incoming, self._outgoing) if half is not None]
        for half in halves:
            half.detach()
        _close(self._handle)
        for half in halves:
            half.close()

    # ---- for the queues of this package ----

    def take(self, timeout: float | None) -> bytes | Dumped:
        """Receive content, still pickled. Raises ``queue.Empty`` if none comes within ``timeout`` seconds, else as
        `recv`."""
        self._check_closed()
        return self._incoming.recv(at_least_0(timeout))


def Pipe(duplex: bool = True, capacity_nbytes: int = CAPACITY_NBYTES) -> tuple[RingConnection, RingConnection]:
    """Two connections of a pipe, as `multiprocessing.Pipe`.

    Parameters
    ----------
    duplex : bool, default True
        Whether both connections send and receive; else the first only receives and the second only sends.
    capacity_nbytes : int, default 256 KiB
        Size of the ring in each direction, reserved at once. A longer object streams through it.

    Returns
    -------
    RingConnection, RingConnection

    Raises
    ------
    TypeError, ValueError
        ``capacity_nbytes`` is no int, or too small or large for a ring.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.
    """
    return connected(create_half(capacity_nbytes), create_half(capacity_nbytes) if duplex else None)


def connected(there: Any, back: Any) -> tuple[RingConnection, RingConnection]:
    """The connections of a pipe of these directions: the first receives ``there`` and sends ``back``."""
    first, second = socket.socketpair()
    return RingConnection(first.detach(), there, back), RingConnection(second.detach(), back, there)


def dumps(obj: object) -> bytes | Dumped:
    """Pickle with the reducers of `multiprocessing`; large buffers stay beside the stream. `ObjectError`, whose cause
    is the error, if the object does not pickle."""
    if type(obj) is bytes or is_plain(obj):
        return pickle.dumps(obj, 5)
    dumped = dump(
        obj,
        refusal=None,
        out_of_band_nbytes=OUT_OF_BAND_OF_BLOCK_NBYTES,
        as_multiprocessing=True,
        carries_blocks=True,
    )
    return dumped if dumped.buffers or dumped.flight else dumped.stream


def loads(content: bytes | Dumped) -> Any:
    """Unpickle content made by `dumps`."""
    if isinstance(content, bytes):
        return pickle.loads(content)
    try:
        return load(content.header, content.buffers, flight=content.flight)
    except BlockLostError:
        raise
    except ObjectError as error:
        raise error.__cause__ from None


def _reduce(end: RingConnection) -> tuple:
    end._check_closed()
    halves = [half and half.channel for half in (end._incoming, end._outgoing)]
    return _rebuild, (passed_on(end._handle), *halves)


def _rebuild(descriptor: Any, incoming: Any, outgoing: Any) -> RingConnection:
    return RingConnection(descriptor.detach(), incoming, outgoing)


reduction.register(RingConnection, _reduce)


def __getattr__(name: str) -> Any:
    return getattr(_standard, name)
