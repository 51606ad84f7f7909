"""Constructors of channels: one sender and one receiver, fan-in, broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmring.channels.fan_in import FanInReceiver
from shmring.channels.memory import WHEN_FULL, ChannelMemory, allows_pickle, create_unnamed, open_named, require_one_of
from shmring.channels.multi_ring import create_broadcast, create_fan_in
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver, RecordSender
from shmring.channels.sender import Sender

_MIB = 1 << 20


def channel(
    capacity_nbytes: int = _MIB,
    *,
    dtype: Any = None,
    when_full: str = "wait",
    allow_pickle: bool | None = None,
) -> tuple[Any, Any]:
    """Make a channel: the receiving end gets the messages of the sending end, in order, each once.

    Parameters
    ----------
    capacity_nbytes : int, default 1 MiB
        Size of the ring in bytes; at least 64, rounded up to a power of two (of records, if there is a dtype). Messages
        of any size can be sent; a message that must lie in the ring in one piece can take at most half of it.
    dtype : dtype, optional
        Makes it a channel of records of this dtype, which have no headers and move as arrays. None: a channel of
        messages, each bytes, an array, or an object.
    when_full : {"wait", "drop_newest", "drop_oldest"}
        A send that finds no room waits for it; drops the new message; or drops the oldest messages that are not being
        read. Both ends count dropped messages.
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
    require_one_of("when_full", when_full, WHEN_FULL)
    return _ends(create_unnamed(capacity_nbytes, _dtype(dtype), when_full, allows_pickle(allow_pickle)))


def open_channel(
    name: str,
    role: str,
    capacity_nbytes: int = _MIB,
    *,
    dtype: Any = None,
    when_full: str = "wait",
    allow_pickle: bool | None = None,
) -> Any:
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
    require_one_of("when_full", when_full, WHEN_FULL)
    memory = open_named(name, capacity_nbytes, _dtype(dtype), when_full, allows_pickle(allow_pickle))
    try:
        return _ends(memory)[role == "receiver"].take()
    except BaseException:
        memory.leave()
        raise


def fan_in(
    nsenders: int,
    capacity_nbytes: int = _MIB,
    *,
    dtype: Any = None,
    when_full: str = "wait",
    allow_pickle: bool | None = None,
) -> tuple[list[Any], FanInReceiver]:
    """Make a channel from many senders to one receiver, which takes from them in turn; each sender has its own ring.

    Parameters
    ----------
    nsenders : int
        The number of senders, 1 to 1024.
    capacity_nbytes : int, default 1 MiB
        Size of each ring, as in `channel`.
    dtype, when_full, allow_pickle
        As in `channel`.

    Returns
    -------
    list of Sender, FanInReceiver
        With a dtype, list of RecordSender. Each end belongs to the process that first uses it.

    Notes
    -----
    Raises as `channel`. Senders share nothing: none waits for another, and a sender that stops, dies, or sends long
    messages does not delay the others. The memory has no name. Any thread may call.
    """
    kind = _dtype(dtype)
    require_one_of("when_full", when_full, WHEN_FULL)
    rings = create_fan_in(nsenders, capacity_nbytes, kind, when_full, allows_pickle(allow_pickle))
    sender = Sender if kind is None else RecordSender
    return [sender(ring, "sender") for ring in rings], FanInReceiver(rings)


def broadcast_channel(
    nreceivers: int,
    capacity_nbytes: int = _MIB,
    *,
    dtype: Any = None,
    when_slow: str = "wait",
    allow_pickle: bool | None = None,
) -> tuple[Any, list[Any]]:
    """Make a channel from one sender to many: each receiver gets all messages, at its own pace, from one copy of each.

    Parameters
    ----------
    nreceivers : int
        The number of receivers, 1 to 1024.
    capacity_nbytes : int, default 1 MiB
        As in `channel`; one ring serves all receivers.
    dtype : dtype, optional
        As in `channel`.
    when_slow : {"wait", "drop_oldest", "disconnect"}
        If there is no room because a receiver has not read its messages, the sender waits for it; that receiver misses
        the oldest messages that it is not reading; or it is disconnected, and gets `DisconnectedError`. The second and
        the third are counted, and do not affect the other receivers.
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
    members = create_broadcast(nreceivers, capacity_nbytes, kind, when_slow, allows_pickle(allow_pickle))
    sender, receiver = (Sender, Receiver) if kind is None else (RecordSender, RecordReceiver)
    return sender(members[0], "sender"), [receiver(member, "receiver") for member in members]


def _ends(memory: ChannelMemory) -> tuple[Any, Any]:
    if memory.dtype is None:
        return Sender(memory, "sender"), Receiver(memory, "receiver")
    return RecordSender(memory, "sender"), RecordReceiver(memory, "receiver")


def _dtype(dtype: Any) -> np.dtype | None:
    return None if dtype is None else np.dtype(dtype)
