"""Inspection of the channels that this user's processes have open: which end waits, how full, how fast.

A channel need not have a name. But every process that has an end of one keeps a descriptor of its memory; descriptors
are listed in /proc and can be opened from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from shmring.channels.memory import ChannelMemory, label_of
from shmring.channels.multi_ring import MemberRing, rings_of
from shmring.errors import ShmringError
from shmring.memory import names, segment
from shmring.memory.segment import CHANNEL
from shmring.memory.spelling import user_prefix
from shmring.memory.unnamed import is_unnamed
from shmring.ring.inspect import RingLook, look


class ChannelLook(NamedTuple):
    """State of a channel, and its rates over an interval."""

    name: str
    """Of its segment; the channel itself may have none."""
    is_named: bool
    ring: RingLook
    messages_per_s: float
    nbytes_per_s: float
    """Of the ring, headers included."""

    @property
    def waiting(self) -> str:
        """Which end sleeps, and what it waits for; empty if none does."""
        sender, receiver = self.ring.producer, self.ring.consumer
        if receiver.asleep and receiver.state == "here":
            return f"receiver {receiver.pid} waits for sender {_holder(sender.pid, sender.state)} to send"
        if sender.asleep and sender.state == "here":
            return f"sender {sender.pid} waits for receiver {_holder(receiver.pid, receiver.state)} to receive"
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
    """
    found = [(target, ring, _look(ring)) for target, ring in _open_rings()]
    started = time.monotonic()
    if interval > 0:
        time.sleep(interval)
    elapsed = time.monotonic() - started
    looks = []
    for target, ring, then in found:
        now = _look(ring)
        messages = now.producer.messages - then.producer.messages
        nbytes = (now.producer.position - then.producer.position) * now.slot_nbytes
        rates = (messages / elapsed, nbytes / elapsed) if interval > 0 else (0.0, 0.0)
        is_named = not target.endswith(" (deleted)")
        name = label_of(ring.memory) or target.removeprefix(names.SHM_DIRECTORY).removesuffix(" (deleted)")
        name += f", ring {ring.index}" if isinstance(ring, MemberRing) else ""
        looks.append(ChannelLook(name, is_named, now, *rates))
    return sorted(looks)


def _look(channel: ChannelMemory) -> RingLook:
    return look(memoryview(channel.mapping)[channel.ring_offset :])


def _open_rings() -> Iterator[tuple[str, ChannelMemory]]:
    """Each ring, with the link to its file, of each channel that a process has a descriptor of."""
    seen = set()
    prefix = user_prefix()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # gone, or another user's
            continue
        for descriptor in descriptors:
            path = f"/proc/{pid}/fd/{descriptor}"
            try:
                target = os.readlink(path)
                inode = names.inode_of(os.stat(path))
                if inode in seen or not (is_unnamed(target) or target.startswith(names.SHM_DIRECTORY + prefix)):
                    continue
                seen.add(inode)
                memory = segment.adopt(os.open(path, os.O_RDWR), kind=CHANNEL)
                if is_unnamed(target) and not label_of(memory).startswith(prefix):
                    continue
                rings = rings_of(memory)
                for ring in rings:
                    _look(ring)
            except (OSError, ShmringError):  # gone meanwhile; no channel; or one of another version of shmring
                continue
            for ring in rings:
                yield target, ring
