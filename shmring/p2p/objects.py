"""Sends and receives Python objects: one message for the pickle stream, then one for each out-of-band buffer.

All have the same source and tag, so they arrive in order. The stream is sent with a structured dtype, which `probe`
distinguishes from an array of bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from shmring.arrays.pickle5 import empty_buffers, pack, require_pickle, unpack
from shmring.errors import MessageError, ObjectError
from shmring.p2p.api import MessageCalls
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG

_STREAM = np.dtype([("stream", "u1")])


class ObjectMessageCalls(MessageCalls):
    """The part of `shmring.Communicator` that sends and receives objects."""

    def send_object(self, obj: Any, dst: int, tag: int = 0, *, timeout=...) -> None:
        """Send a Python object to one rank.

        Parameters
        ----------
        obj : object
            Any object that can be pickled. Large arrays inside it are not copied into the pickle stream.
        dst : int
            The rank that receives it, with `recv_object`.
        tag : int
            From 0 up.
        timeout : float, optional
            Seconds to wait for room in the pair queue; None for no limit. The communicator's timeout by default.

        Raises
        ------
        ValueError
            The communicator was made with ``allow_pickle=False``, or a bad rank or tag. Nothing was sent.
        ObjectError
            The object cannot be pickled. Nothing was sent.
        PeerLostError, MessageTimeoutError, AbortedError
            As in `send`. If part of the object was sent, the communicator is broken.

        Notes
        -----
        Blocks while the pair queue to ``dst`` is full. One message for the pickle stream, one for each large buffer.
        """
        require_pickle(self.config.allow_pickle)
        try:
            pickled = pack(obj)
        except Exception as error:
            raise ObjectError(
                f"rank {self.rank} cannot pickle its object: {type(error).__name__}: {error}", self.rank
            ) from error
        self.send(np.frombuffer(pickled.stream, _STREAM), dst, tag, timeout=timeout)
        with self._all_or_nothing():
            for buffer in pickled.buffers:
                self.send(np.frombuffer(buffer, np.uint8), dst, tag, timeout=timeout)

    def recv_object(self, src: int = ANY_SOURCE, tag: int = ANY_TAG, *, timeout=...) -> Any:
        """Receive a Python object.

        Parameters
        ----------
        src, tag : int
            Source and tag; any by default.
        timeout : float, optional
            Seconds to wait for its first message; None for no limit. The communicator's timeout by default.

        Returns
        -------
        object
            Its arrays are writable and own their memory.

        Raises
        ------
        ValueError
            The communicator was made with ``allow_pickle=False``. Nothing was received.
        MessageError
            The next message is an array; it can still be received with `recv`.
        ObjectError
            The object cannot be unpickled here; it has been received.
        PeerLostError, MessageTimeoutError, AbortedError
            As in `recv`.

        Notes
        -----
        Blocks until the object has arrived. Unpickling runs code chosen by the sender. One thread at a time may receive
        objects from one source with one tag.
        """
        require_pickle(self.config.allow_pickle)
        message = self.probe(src, tag, timeout=timeout)
        if message.dtype is not None:
            raise MessageError(
                f"the next message from rank {message.source} with tag {message.tag} is an array of {message.dtype}, "
                "not an object: receive it with recv()"
            )
        stream = np.empty(message.nbytes, _STREAM)
        self.recv(stream, message.source, message.tag, timeout=timeout)
        raw = stream.view(np.uint8)
        with self._all_or_nothing():
            buffers = empty_buffers(raw)
            for buffer in buffers:
                self.recv(buffer, message.source, message.tag, timeout=timeout)
        try:
            return unpack(raw, buffers)
        except Exception as error:
            text = f"the object from rank {message.source} cannot be unpickled here: {type(error).__name__}: {error}"
            raise ObjectError(text, message.source) from error

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Break the communicator on an error in the middle of an object: its rest would be taken for other messages."""
        try:
            yield
        except BaseException as error:
            if not self.is_closed and not self.is_broken:
                self.abort(f"{type(error).__name__} in the middle of an object: {error}")
            raise
