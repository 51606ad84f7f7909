"""Inspection of the channels that this user's processes have open: which end waits, how full, how fast.

A channel need not have a name. But every process that has an end of one keeps a descriptor of its memory; descriptors
are listed in /proc and can be opened from there.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from shmring.channels.format import CONTROL_NBYTES
from shmring.channels.memory import LABEL_NBYTES, LABEL_OFFSET
from shmring.channels.multi_ring import ring_offsets
from shmring.errors import ShmringError
from shmring.memory.header import CHANNEL, HEADER_NBYTES, unpack
from shmring.memory.open_files import OpenFile, open_files
from shmring.memory.spelling import user_prefix
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
    """
    before = look_at_rings()
    started = time.monotonic()
    if interval > 0:
        time.sleep(interval)
    return with_rates(before, look_at_rings() if interval > 0 else before, time.monotonic() - started)


# The rings that were found: file and index of each -> its name, whether that stands, and its state.
RingLooks = dict[tuple[tuple[int, int], int], tuple[str, bool, RingLook]]


def with_rates(before: RingLooks, now: RingLooks, elapsed: float) -> list[ChannelLook]:
    """What is open now, with the rates since an earlier look; 0 for a ring that was not there then."""
    looks = []
    for key, (name, is_named, ring) in now.items():
        then = before.get(key, (name, is_named, ring))[2]
        messages = max(0, ring.producer.messages - then.producer.messages)
        nbytes = max(0, ring.producer.position - then.producer.position) * ring.slot_nbytes
        rates = (messages / elapsed, nbytes / elapsed) if elapsed > 0 else (0.0, 0.0)
        looks.append(ChannelLook(name, is_named, ring, *rates))
    return sorted(looks)


def look_at_rings() -> RingLooks:
    """Each ring of each channel that a process of this user has a descriptor of."""
    found: RingLooks = {}
    seen = set()
    for file in open_files():
        try:
            inode = file.inode()
            if inode not in seen:
                seen.add(inode)
                found |= {(inode, i): one for i, one in enumerate(_rings(file))}
        except (OSError, ShmringError):  # gone meanwhile; no channel; or one of another version of shmring
            continue
    return found


def _rings(file: OpenFile) -> list[tuple[str, bool, RingLook]]:
    page = file.read((0, HEADER_NBYTES))[0]
    header = unpack(page)
    if header is None or header.kind != CHANNEL:
        return []
    label = page[LABEL_OFFSET : LABEL_OFFSET + LABEL_NBYTES].partition(b"\0")[0].decode(errors="replace")
    is_named = not file.target.endswith(" (deleted)")
    if label and not label.startswith(user_prefix()):
        return []
    name = "".join(c if c.isprintable() else "?" for c in label or file.name)
    end = min(header.nbytes, 1 << 62) - CONTROL_NBYTES
    offsets = [offset for offset in ring_offsets(header) if offset <= end]
    looks = [look(bytearray(copy)) for copy in file.read(*((offset, CONTROL_NBYTES) for offset in offsets))]
    is_one = len(looks) == 1 and not header.params[2] & 0x7F
    return [(name if is_one else f"{name}, ring {i}", is_named, one) for i, one in enumerate(looks)]
