"""Constructors of channels: one sender and one receiver, or several receivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from shmring.channels.broadcast import create_broadcast
from shmring.channels.memory import ChannelMemory, allows_pickle, create_unnamed, open_named
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver, RecordSender
from shmring.channels.sender import Sender

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from shmring.typing import Role, WhenFull

_MIB = 1 << 20


@overload
def channel(
    capacity_nbytes: int = ..., *, dtype: None = None, when_full: WhenFull = ..., allow_pickle: bool | None = ...
) -> tuple[Sender, Receiver]: ...
@overload
def channel(
    capacity_nbytes: int = ..., *, dtype: DTypeLike, when_full: WhenFull = ..., allow_pickle: bool | None = ...
) -> tuple[RecordSender, RecordReceiver]: ...
def channel(
    capacity_nbytes: int = _MIB,
    *,
    dtype: DTypeLike | None = None,
    when_full: WhenFull = "wait",
    allow_pickle: bool | None = None,
) -> tuple[Sender, Receiver] | tuple[RecordSender, RecordReceiver]:
    """Make a channel: the receiving end gets the messages of the sending end, in order, each once.

    Parameters
    ----------
    capacity_nbytes : int, default 1 MiB
        Size of the ring in bytes; at least 64, rounded up to a power of two (of records, if there is a dtype). Messages
        of any size can be sent; a message that must lie in the ring in one piece can take at most half of it.
    dtype : dtype, optional
        Makes it a channel of records of this dtype, which have no headers and move as arrays. None: a channel of
        messages, each bytes, an array, or an object.
    when_full : {"wait", "drop_newest"}
        A send that finds no room waits for it, or drops the message, which both ends count. For the newest value only
        there is `Latest`.
    allow_pickle : bool, optional
        Whether the channel carries Python objects; unpickling runs code that the sender chose. By default the setting
        of the same name (``SHMRING_ALLOW_PICKLE``), which is True. In a process that gets an end from another one, its
        own setting must allow it, too.

    Returns
    -------
    Sender, Receiver
        With a dtype, RecordSender and RecordReceiver. Each belongs to the process that first uses it: use them in two
        threads, inherit them through a fork, or pass them to a process of multiprocessing, by any start method.

    Raises
    ------
    TypeError, ValueError
        A bad argument.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.

    Notes
    -----
    The memory has no name: it is freed with the last process that has an end, however that process ends. Any thread may
    call.
    """
    return _ends(create_unnamed(capacity_nbytes, _dtype(dtype), when_full, allows_pickle(allow_pickle)))


@overload
def open_channel(
    name: str,
    role: Literal["sender"],
    capacity_nbytes: int = ...,
    *,
    dtype: None = None,
    when_full: WhenFull = ...,
    allow_pickle: bool | None = ...,
) -> Sender: ...
@overload
def open_channel(
    name: str,
    role: Literal["sender"],
    capacity_nbytes: int = ...,
    *,
    dtype: DTypeLike,
    when_full: WhenFull = ...,
    allow_pickle: bool | None = ...,
) -> RecordSender: ...
@overload
def open_channel(
    name: str,
    role: Literal["receiver"],
    capacity_nbytes: int = ...,
    *,
    dtype: None = None,
    when_full: WhenFull = ...,
    allow_pickle: bool | None = ...,
) -> Receiver: ...
@overload
def open_channel(
    name: str,
    role: Literal["receiver"],
    capacity_nbytes: int = ...,
    *,
    dtype: DTypeLike,
    when_full: WhenFull = ...,
    allow_pickle: bool | None = ...,
) -> RecordReceiver: ...
def open_channel(
    name: str,
    role: Role,
    capacity_nbytes: int = _MIB,
    *,
    dtype: DTypeLike | None = None,
    when_full: WhenFull = "wait",
    allow_pickle: bool | None = None,
) -> Sender | Receiver | RecordSender | RecordReceiver:
    """Open one end of a channel that has a name, for processes that are not related.

    Parameters
    ----------
    name : str
        Any text; only processes of the same user find each other by it.
    role : {"sender", "receiver"}
        The end to open; it is taken at once.
    capacity_nbytes, dtype, when_full, allow_pickle
        As in `channel`. The process that opens first decides about ``capacity_nbytes``; ``dtype`` and ``when_full``
        must be the same for both. An end with ``allow_pickle=False`` neither sends objects nor unpickles them; an end
        with True does if the end that was opened first allows it, too.

    Returns
    -------
    Sender or Receiver
        With a dtype, RecordSender or RecordReceiver.

    Raises
    ------
    RoleTakenError
        A living process has that end; ``pid`` is its id. Once that process has closed the end, or died, the end can be
        opened again, and messages that were sent and not received are still there.
    SegmentError
        The segment of that name does not belong to this user, or is not a channel like this one.
    TypeError, ValueError, OutOfSharedMemoryError
        As in `channel`.

    Notes
    -----
    Does not wait for the other end. The name exists as long as one end is open; the last close unlinks it. If the
    processes of both ends are killed, a stale name is left: the next call with that name replaces it, and ``shmring
    info --clean`` removes it.
    """
    if role not in ("sender", "receiver"):
        raise ValueError(f"role={role!r}: must be 'sender' or 'receiver'")
    if not isinstance(name, str) or not name:
        raise TypeError(f"name={name!r}: must be a text that is not empty")
    memory = open_named(name, capacity_nbytes, _dtype(dtype), when_full, allows_pickle(allow_pickle))
    try:
        return _ends(memory)[role == "receiver"].take()
    except BaseException:
        memory.leave()
        raise


@overload
def broadcast_channel(
    nreceivers: int,
    capacity_nbytes: int = ...,
    *,
    dtype: None = None,
    slow_timeout: float | None = ...,
    allow_pickle: bool | None = ...,
) -> tuple[Sender, list[Receiver]]: ...
@overload
def broadcast_channel(
    nreceivers: int,
    capacity_nbytes: int = ...,
    *,
    dtype: DTypeLike,
    slow_timeout: float | None = ...,
    allow_pickle: bool | None = ...,
) -> tuple[RecordSender, list[RecordReceiver]]: ...
def broadcast_channel(
    nreceivers: int,
    capacity_nbytes: int = _MIB,
    *,
    dtype: DTypeLike | None = None,
    slow_timeout: float | None = None,
    allow_pickle: bool | None = None,
) -> tuple[Sender, list[Receiver]] | tuple[RecordSender, list[RecordReceiver]]:
    """Make a channel from one sender to many: each receiver gets all messages, at its own pace, from one copy of each.

    Parameters
    ----------
    nreceivers : int
        The number of receivers, 1 to 1024.
    capacity_nbytes : int, default 1 MiB
        As in `channel`; one ring serves all receivers.
    dtype : dtype, optional
        As in `channel`.
    slow_timeout : float, optional
        Seconds for which a send waits for receivers that leave no room. Then it disconnects them, and goes on with the
        others: a disconnected receiver gets `DisconnectedError`, and none of the messages that it had not received.
        Receivers copy messages to be safe from that, also in `peek`. None: the sender waits for every receiver that
        lives. A send whose own ``timeout`` is shorter raises ``queue.Full`` and disconnects none.
    allow_pickle : bool, optional
        As in `channel`.

    Returns
    -------
    Sender, list of Receiver
        With a dtype, RecordSender and list of RecordReceiver. `Sender.send` returns the number of receivers that get a
        message, `Sender.receivers` the state of each. Each end belongs to the process that first uses it.

    Notes
    -----
    Raises as `channel`. A receiver also gets messages that were sent before it was taken, so until then the sender may
    have to wait for it. A sender does not wait for a receiver that has closed or died. The memory has no name. Any
    thread may call.
    """
    kind = _dtype(dtype)
    allows = allows_pickle(allow_pickle)
    members = create_broadcast(nreceivers, capacity_nbytes, kind, allows, slow_timeout=slow_timeout)
    if kind is None:
        return Sender(members[0], "sender"), [Receiver(member, "receiver") for member in members]
    return RecordSender(members[0], "sender"), [RecordReceiver(member, "receiver") for member in members]


def _ends(memory: ChannelMemory) -> tuple[Sender, Receiver] | tuple[RecordSender, RecordReceiver]:
    if memory.dtype is None:
        return Sender(memory, "sender"), Receiver(memory, "receiver")
    return RecordSender(memory, "sender"), RecordReceiver(memory, "receiver")


def _dtype(dtype: DTypeLike | None) -> np.dtype | None:
    return None if dtype is None else np.dtype(dtype)
