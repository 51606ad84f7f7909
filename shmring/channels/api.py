"""Channels: messages from one process to one other, through a ring in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmring.channels.memory import Channel, create_unnamed, open_named
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver, RecordSender
from shmring.channels.sender import Sender
from shmring.config import configure

_MIB = 1 << 20


def channel(
    capacity_nbytes: int = _MIB,
    *,
    dtype: Any = None,
    when_full: str = "wait",
    allow_pickle: bool | None = None,
) -> tuple[Any, Any]:
    """Make a channel: what is sent into one end comes out of the other, in order, once.

    Parameters
    ----------
    capacity_nbytes : int, default 1 MiB
        How many bytes can be under way; at least 64, rounded up to a power of two (of records, if there is a dtype).
        Messages of any size go through; what shall lie in it in one piece must take at most half of it.
    dtype : dtype, optional
        Makes it a channel of records of this dtype, which go without headers and move as arrays. None: messages, each
        bytes, an array, or an object.
    when_full : {"wait", "drop_newest", "drop_oldest"}
        What sending does when there is no room: wait for it; give up the new message; or give up the oldest that are
        not being read just now. Both ends count what was dropped.
    allow_pickle : bool, optional
        Whether it carries Python objects; unpickling runs what the sender sent. By default the setting of the same name
        (``SHMRING_ALLOW_PICKLE``), which is True.

    Returns
    -------
    Sender, Receiver
        Or RecordSender and RecordReceiver. Each belongs to the process that first uses it: use them in two threads,
        inherit them through a fork, or pass them to a process of multiprocessing, by any start method.

    Raises
    ------
    TypeError, ValueError
        A bad argument.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.

    Notes
    -----
    The memory has no name: it is gone with the last process that has an end, whatever ends it. Any thread may call.
    """
    kind = None if dtype is None else np.dtype(dtype)
    return _ends(create_unnamed(capacity_nbytes, kind, when_full, _pickles(allow_pickle)))


def open_channel(
    name: str,
    role: str,
    capacity_nbytes: int = _MIB,
    *,
    dtype: Any = None,
    when_full: str = "wait",
    allow_pickle: bool | None = None,
) -> Any:
    """Open one end of a channel that has a name, for processes that are no relatives.

    Parameters
    ----------
    name : str
        Any text; only processes of the same user find each other by it.
    role : {"sender", "receiver"}
        Which end; it is taken at once.
    capacity_nbytes, dtype, when_full, allow_pickle
        As in `channel`. Who comes first decides about the first; ``dtype`` and ``when_full`` must be the same for both.

    Returns
    -------
    Sender or Receiver
        Or RecordSender or RecordReceiver.

    Raises
    ------
    RoleTakenError
        A living process has that end; ``pid`` names it. Once it has closed it, or died, it can be opened again, and
        what was sent and not received is still there.
    SegmentError
        What stands under that name is not ours, or not a channel like this one.
    TypeError, ValueError, OutOfSharedMemoryError
        As in `channel`.

    Notes
    -----
    Does not wait for the other end. The name stands as long as one end is open; who closes last takes it away. If both
    are killed it is left, stale: the next to open it replaces it, and ``shmring info --clean`` removes it.
    """
    if role not in ("sender", "receiver"):
        raise ValueError(f"role={role!r}: must be 'sender' or 'receiver'")
    if not isinstance(name, str) or not name:
        raise TypeError(f"name={name!r}: must be a text that is not empty")
    kind = None if dtype is None else np.dtype(dtype)
    memory = open_named(name, capacity_nbytes, kind, when_full, _pickles(allow_pickle))
    try:
        return _ends(memory)[role == "receiver"].take()
    except BaseException:
        memory.leave()
        raise


def _ends(memory: Channel) -> tuple[Any, Any]:
    if memory.dtype is None:
        return Sender(memory, "sender"), Receiver(memory, "receiver")
    return RecordSender(memory, "sender"), RecordReceiver(memory, "receiver")


def _pickles(allow_pickle: bool | None) -> bool:
    return configure().allow_pickle if allow_pickle is None else bool(allow_pickle)
