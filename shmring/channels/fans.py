"""Channels with many at one end: fan-in and broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmring.channels.broadcast import BroadcastSender
from shmring.channels.fan_in import FanInReceiver
from shmring.channels.multi_ring import create_broadcast, create_fan_in
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver, RecordSender
from shmring.channels.sender import Sender
from shmring.config import configure

_MIB = 1 << 20


def fan_in(
    nsenders: int,
    capacity_nbytes: int = _MIB,
    *,
    dtype: Any = None,
    when_full: str = "wait",
    allow_pickle: bool | None = None,
) -> tuple[list[Any], FanInReceiver]:
    """Make a channel from many to one: each sender has a ring of its own, and the receiver takes from them in turn.

    Parameters
    ----------
    nsenders : int
        How many, 1 to 1024.
    capacity_nbytes : int, default 1 MiB
        Of each of the rings, as in `channel`.
    dtype, when_full, allow_pickle
        As in `channel`.

    Returns
    -------
    list of Sender, FanInReceiver
        Or of RecordSender. The senders are those of a `channel`. Each end belongs to the process that first uses it.

    Raises
    ------
    TypeError, ValueError
        A bad argument.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.

    Notes
    -----
    Senders share nothing: none waits for another, and none that stops, dies, or sends long messages holds up the
    others. The memory has no name. Any thread may call.
    """
    kind = None if dtype is None else np.dtype(dtype)
    fan = create_fan_in(nsenders, capacity_nbytes, kind, when_full, _pickles(allow_pickle))
    end = Sender if kind is None else RecordSender
    return [end(fan.branch(i), "sender") for i in range(nsenders)], FanInReceiver(fan)


def broadcast_channel(
    nreceivers: int,
    capacity_nbytes: int = _MIB,
    *,
    dtype: Any = None,
    when_slow: str = "wait",
    allow_pickle: bool | None = None,
) -> tuple[BroadcastSender, list[Any]]:
    """Make a channel from one to many: each receiver gets all messages, at its own pace, from one copy of each.

    Parameters
    ----------
    nreceivers : int
        How many, 1 to 1024.
    capacity_nbytes : int, default 1 MiB
        As in `channel`; in all, however many receive.
    dtype : dtype, optional
        As in `channel`.
    when_slow : {"wait", "drop_oldest", "disconnect"}
        What happens when there is no room because some receiver has still to read what stands there: the sender waits
        for it; that receiver misses the oldest messages that it is not reading just now; or it is cut off, and gets
        `DisconnectedError`. The second and the third are counted, and the other receivers notice nothing.
    allow_pickle : bool, optional
        As in `channel`.

    Returns
    -------
    BroadcastSender, list of Receiver
        Or of RecordReceiver. The receivers are those of a `channel`. Each end belongs to the process that first uses
        it.

    Raises
    ------
    TypeError, ValueError
        A bad argument.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.

    Notes
    -----
    A receiver gets what was sent before it was taken, too, so until then the sender may have to wait for it. One that
    closes or dies is left behind at once. The memory has no name. Any thread may call.
    """
    kind = None if dtype is None else np.dtype(dtype)
    fan = create_broadcast(nreceivers, capacity_nbytes, kind, when_slow, _pickles(allow_pickle))
    end = Receiver if kind is None else RecordReceiver
    return BroadcastSender(fan), [end(fan.branch(i + 1), "receiver") for i in range(nreceivers)]


def _pickles(allow_pickle: bool | None) -> bool:
    return configure().allow_pickle if allow_pickle is None else bool(allow_pickle)
