"""Inspection of the channels that this user's processes have open: waiting ends, fill, rates.

A channel need not have a name. But every process that has an end of one keeps a descriptor of its memory; descriptors
are listed in /proc and can be opened from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from threading import TIMEOUT_MAX
from typing import NamedTuple

from shmring.channels.broadcast import heads_of
from shmring.channels.memory import LABEL_NBYTES, LABEL_OFFSET
from shmring.channels.queue_locks import QUEUE_NBYTES, lock_holders
from shmring.core.memory.header import CHANNEL, HEADER_NBYTES, unpack
from shmring.core.memory.names import inode_of
from shmring.core.memory.open_files import OpenFile, open_files
from shmring.core.memory.spelling import user_prefix
from shmring.core.ring.inspect import RingLook, look
from shmring.core.ring.spsc import CONTROL_NBYTES, HEAD_NBYTES
from shmring.errors import ShmringError


class ChannelLook(NamedTuple):
    """State of a channel, and its rates over an interval.

    Attributes
    ----------
    name : str
        The name of its segment; the channel itself may have none.
    is_named : bool
        Whether the segment still has this name.
    ring : RingLook
        The state of its ring and of both ends.
    messages_per_s, nbytes_per_s : float
        Messages sent, and bytes written into the ring, headers included.
    holders : tuple
        For a queue: the processes that hold its locks for sending and for receiving, or None.
    """

    name: str
    is_named: bool
    ring: RingLook
    messages_per_s: float
    nbytes_per_s: float
    holders: tuple[int | None, int | None] = (None, None)

    @property
    def waiting(self) -> str:
        """The end that sleeps, and what it waits for; empty if none sleeps."""
        sender, receiver = self.ring.producer, self.ring.consumer
        if receiver.asleep and receiver.state == "here":
            return f"receiver {receiver.pid} waits for sender {_holder(sender.pid, sender.state)} to send"
        if sender.asleep and sender.state == "here":
            return f"sender {sender.pid} waits for receiver {_holder(receiver.pid, receiver.state)} to receive"
        # The ends of a queue have no holder. A process that died in its sleep is not taken for one that waits.
        if sender.asleep and sender.state == "absent" and self.ring.fill > 0:
            return "a sender waits for room"
        if receiver.asleep and receiver.state == "absent" and self.ring.fill == 0:
            return "a receiver waits for a message"
        return ""


def _holder(pid: int, state: str) -> str:
    return "(not taken yet)" if state == "absent" else f"{pid}" if state == "here" else f"{pid} ({state})"


def list_channels(interval: float = 0.0) -> list[ChannelLook]:
    """List the channels that processes of this user have open and that this process may inspect.

    Parameters
    ----------
    interval : float
        Seconds over which to measure the rates; 0: none.

    Returns
    -------
    list of ChannelLook
        One for each ring.

    Raises
    ------
    ValueError
        ``interval`` is negative, or longer than a process can sleep.
    """
    if not 0 <= interval <= TIMEOUT_MAX:
        raise ValueError(f"interval={interval!r}: must be seconds from 0 to {TIMEOUT_MAX:.0f}")
    before = look_at_rings()
    started = time.monotonic()
    if interval > 0:
        time.sleep(interval)
    return with_rates(before, look_at_rings() if interval > 0 else before, time.monotonic() - started)


Holders = tuple[int | None, int | None]

# The rings that were found: file and index of each -> its name, whether the file has that name, its state, its holders.
RingLooks = dict[tuple[tuple[int, int], int], tuple[str, bool, RingLook, Holders]]


def with_rates(before: RingLooks, now: RingLooks, elapsed: float) -> list[ChannelLook]:
    """The rings that are open now, with their rates since an earlier look; 0 for a ring that is new."""
    looks = []
    for key, (name, is_named, ring, holders) in now.items():
        then = before[key][2] if key in before else ring
        messages = max(0, ring.producer.messages - then.producer.messages)
        nbytes = max(0, ring.producer.position - then.producer.position) * ring.slot_nbytes
        per_s = 1 / elapsed if elapsed > 0 else 0.0
        looks.append(ChannelLook(name, is_named, ring, messages * per_s, nbytes * per_s, holders))
    return sorted(looks, key=lambda one: one[:2])


def look_at_rings(files: Iterable[OpenFile] | None = None) -> RingLooks:
    """Each ring of each channel among these files; by default, all files that processes of this user have open."""
    found: RingLooks = {}
    seen = set()
    for file in open_files() if files is None else files:
        try:
            inode = file.inode()
            if inode not in seen:
                seen.add(inode)
                found |= {(inode, i): one for i, one in enumerate(_rings(file))}
        except (OSError, ShmringError):  # gone meanwhile; no channel; or one of another version of shmring
            continue
    return found


def _rings(file: OpenFile) -> list[tuple[str, bool, RingLook, Holders]]:
    page = file.read((0, HEADER_NBYTES))[0]
    header = unpack(page)
    if header is None or header.kind != CHANNEL:
        return []
    label = page[LABEL_OFFSET : LABEL_OFFSET + LABEL_NBYTES].partition(b"\0")[0].decode(errors="replace")
    is_named = not file.target.endswith(" (deleted)")
    if label and not label.startswith(user_prefix()):
        return []
    name = "".join(c if c.isprintable() else "?" for c in label or file.name)
    nheads, is_broadcast = heads_of(header)
    nbytes = CONTROL_NBYTES + (nheads - 1) * HEAD_NBYTES
    if nheads == 0 or HEADER_NBYTES + nbytes > min(header.nbytes, 1 << 62):
        return []
    copy = bytearray(file.read((HEADER_NBYTES, nbytes))[0])
    if is_broadcast:
        return [(f"{name}, receiver {i}", is_named, look(copy, i), (None, None)) for i in range(nheads)]
    return [(name, is_named, look(copy), _holders(file, header.params[2]))]


def _holders(file: OpenFile, queue_offset: int) -> Holders:
    """The processes that hold the locks of a queue; None and None for another channel."""
    if not 0 < queue_offset < 1 << 62:
        return None, None
    sending, receiving = lock_holders(file.read((queue_offset, QUEUE_NBYTES))[0])
    return _process_of(sending, file), _process_of(receiving, file)


def _process_of(pid: int, file: OpenFile) -> int | None:
    """The process that holds a lock in this file; None for 0, and for a process not visible from here."""
    with suppress(OSError):
        # The number is of the PID namespace of the holder. Here it may be that of a process without the queue.
        folder = f"/proc/{pid}/fd"
        if file.inode() in {inode_of(os.stat(f"{folder}/{fd}")) for fd in os.listdir(folder)}:
            return pid
    return None
