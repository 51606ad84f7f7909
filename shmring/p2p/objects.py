"""Python objects from one rank to one other: each a message with its letter, then one for each enclosure.

They have one source and one tag, so they arrive in order. The letter goes as structures, not as plain bytes: whoever
probes tells it from an array of bytes.
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

_LETTER = np.dtype([("letter", "u1")])


class ObjectMessageCalls(MessageCalls):
    """The part of `shmring.Communicator` that sends and receives objects."""

    def send_object(self, obj: Any, dst: int, tag: int = 0, *, timeout=...) -> None:
        """Send a Python object to one rank.

        Parameters
        ----------
        obj : object
            Anything that pickles. Large arrays inside it are not copied into the pickle stream.
        dst : int
            The rank that receives it, with `recv_object`.
        tag : int
            From 0 up.
        timeout : float, optional
            Seconds to wait for room; None for ever. The communicator's own by default.

        Raises
        ------
        ValueError
            The communicator was made with ``allow_pickle=False``, or a bad rank or tag. Nothing was sent.
        ObjectError
            The object does not pickle. Nothing was sent.
        PeerLostError, MessageTimeoutError, AbortedError
            As in `send`. If part of the object had gone the communicator is broken.

        Notes
        -----
        Blocks while the lane to ``dst`` is full. One message for the pickle stream, one for each large buffer.
        """
        require_pickle(self.config.allow_pickle)
        try:
            pickled = pack(obj)
        except Exception as error:
            raise ObjectError(
                f"rank {self.rank} cannot pickle its object: {type(error).__name__}: {error}", self.rank
            ) from error
        self.send(np.frombuffer(pickled.stream, _LETTER), dst, tag, timeout=timeout)
        with self._all_or_nothing():
            for enclosure in pickled.buffers:
                self.send(np.frombuffer(enclosure, np.uint8), dst, tag, timeout=timeout)

    def recv_object(self, src: int = ANY_SOURCE, tag: int = ANY_TAG, *, timeout=...) -> Any:
        """Receive a Python object.

        Parameters
        ----------
        src, tag : int
            From whom and with which tag; any by default.
        timeout : float, optional
            Seconds to wait for it to begin to arrive; None for ever. The communicator's own by default.

        Returns
        -------
        object
            Its arrays are writable and own their memory.

        Raises
        ------
        ValueError
            The communicator was made with ``allow_pickle=False``. Nothing was received.
        MessageError
            What comes next is an array; it can still be received with `recv`.
        ObjectError
            The object cannot be made here; it has been received.
        PeerLostError, MessageTimeoutError, AbortedError
            As in `recv`.

        Notes
        -----
        Blocks until the object is there. Unpickling runs what the sender put into it. One thread at a time may receive
        objects from one source with one tag.
        """
        require_pickle(self.config.allow_pickle)
        message = self.probe(src, tag, timeout=timeout)
        if message.dtype is not None:
            raise MessageError(
                f"the next message from rank {message.source} with tag {message.tag} is an array of {message.dtype}, "
                "not an object: receive it with recv()"
            )
        letter = np.empty(message.nbytes, _LETTER)
        self.recv(letter, message.source, message.tag, timeout=timeout)
        raw = letter.view(np.uint8)
        with self._all_or_nothing():
            enclosures = empty_buffers(raw)
            for enclosure in enclosures:
                self.recv(enclosure, message.source, message.tag, timeout=timeout)
        try:
            return unpack(raw, enclosures)
        except Exception as error:
            text = f"the object from rank {message.source} cannot be made here: {type(error).__name__}: {error}"
            raise ObjectError(text, message.source) from error

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """What interrupts an object in the middle ends the communicator: the rest would pass for other messages."""
        try:
            yield
        except BaseException as error:
            if not self.is_closed and not self.is_broken:
                self.abort(f"{type(error).__name__} in the middle of an object: {error}")
            raise
