"""Sends and receives Python objects: one message for the pickle stream, then one for each out-of-band buffer.

All have the same source and tag, so they arrive in order. Their dtype codes are of their own, so that neither is a part
of an object received as an array nor an array taken for an object.
"""

from __future__ import annotations

from typing import Any

from shmring.base.timeouts import timeout_ns
from shmring.p2p.api import MessageCalls
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG


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
            The communicator was made with ``allow_pickle=False``, or a bad rank, tag or timeout. Nothing was sent.
        ObjectError
            The object cannot be pickled. Nothing was sent.
        PeerLostError, MessageTimeoutError, CollectiveTimeoutError, AbortedError
            As in `send`. If a part of the object was sent, the communicator is broken.

        Notes
        -----
        Blocks while the pair queue to ``dst`` is full. One message for the pickle stream, one for each large buffer; no
        other message of this rank comes between them. Any thread may call.
        """
        self.messages.send_object(obj, dst, tag, timeout_ns(self.config.timeout if timeout is ... else timeout))

    def recv_object(self, src: int = ANY_SOURCE, tag: int = ANY_TAG, *, timeout=...) -> Any:
        """Receive a Python object.

        Parameters
        ----------
        src, tag : int
            Source and tag; any by default.
        timeout : float, optional
            Seconds to wait; None for no limit. The communicator's timeout by default.

        Returns
        -------
        object
            Its arrays are writable and own their memory.

        Raises
        ------
        ValueError
            The communicator was made with ``allow_pickle=False``, or a bad argument. Nothing was received.
        MessageError
            The next message is an array; it can still be received with `recv`.
        MessageTimeoutError
            No complete object arrived in time. It can still be received; nothing is lost.
        ObjectError
            The object cannot be unpickled here; it has been received.
        PeerLostError, AbortedError
            As in `recv`.

        Notes
        -----
        Blocks until the object has arrived. Unpickling runs code chosen by the sender. One thread at a time may receive
        objects from one source with one tag.
        """
        return self.messages.recv_object(src, tag, timeout_ns(self.config.timeout if timeout is ... else timeout))
