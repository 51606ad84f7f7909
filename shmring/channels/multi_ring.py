"""The memory of channels that have several rings in one segment: many senders to one receiver, one sender to many.

In a *fan-in* each sender has its own ring, and the receiver one semaphore for all. In a *broadcast* all rings have the
same slots: what is written once is announced in each, and each receiver reads it at its own pace.

    fan-in:     [header page][ring 0 and its slots][ring 1 and its slots]...[waiter]
    broadcast:  [header page][ring 0: the sender's][ring 1]...[ring n][slots]
"""

from __future__ import annotations

import numpy as np

from shmring.channels.format import (
    CONTROL_NBYTES,
    WAITER_NBYTES,
    WHEN_SLOW,
    format_common_waiter,
    format_shared_slots,
)
from shmring.channels.memory import ChannelMemory, checked_ring
from shmring.errors import SegmentError
from shmring.memory.header import HEADER_NBYTES, Header
from shmring.memory.segment import Segment
from shmring.ring.spsc import format_ring

MAX_RINGS = 1024

_FAN_IN, _BROADCAST = 1, 2
_DISCONNECTS = 1 << 9  # in the flags of the header
_PAGE_NBYTES = 4096


class MemberRing(ChannelMemory):
    """One ring of several, as one process sees it.

    Attributes
    ----------
    index : int
    """

    def __init__(self, memory: Segment, index: int, allow_pickle: bool | None = None) -> None:
        super().__init__(memory, allow_pickle=allow_pickle)
        layout, stride = memory.header.params[2:]
        self.index = index
        self.ring_offset = HEADER_NBYTES + index * stride
        if layout & 0xFF == _FAN_IN:
            self.common_waiter_offset = HEADER_NBYTES + (layout >> 8) * stride
        elif index == 0:
            self.when_full = "wait"  # it has no receiver
        last = max(self.ring_offset + CONTROL_NBYTES, self.common_waiter_offset + WAITER_NBYTES)
        if last > memory.nbytes or stride < CONTROL_NBYTES or (stride % CONTROL_NBYTES and stride % _PAGE_NBYTES):
            raise SegmentError("this channel is corrupted: its header has an invalid offset of the rings")

    @property
    def title(self) -> str:
        """How error messages name it."""
        return f"ring {self.index} of this channel"

    def __reduce__(self) -> tuple:
        return MemberRing, (self.memory, self.index)


def ring_offsets(header: Header) -> list[int]:
    """Where each ring begins in the segment of a channel of any kind, by its header, which is not trusted."""
    layout, stride = header.params[2:]
    count = {_FAN_IN: layout >> 8, _BROADCAST: (layout >> 8) + 1}.get(layout & 0xFF, 1)
    return [HEADER_NBYTES + i * stride for i in range(min(count, MAX_RINGS + 1))]


class RingSet:
    """All rings of one segment: the memory of the end that uses all of them.

    Attributes
    ----------
    count : int
        Of senders, or of receivers.
    dtype, allow_pickle, spin_ns, tick_ns
        As of `ChannelMemory`.
    when_slow : str
        One of `WHEN_SLOW`, in a broadcast.
    common_waiter_offset : int
    """

    def __init__(self, memory: Segment, allow_pickle: bool | None = None) -> None:
        self.memory = memory
        self.mapping = memory.mapping
        flags, _, layout, _ = memory.header.params
        self.count = layout >> 8
        if not 1 <= self.count <= MAX_RINGS:
            raise SegmentError(f"this channel has {self.count} rings according to its header")
        first = MemberRing(memory, 0, allow_pickle)
        self.dtype, self.allow_pickle = first.dtype, first.allow_pickle
        self.spin_ns, self.tick_ns = first.spin_ns, first.tick_ns
        self.common_waiter_offset = first.common_waiter_offset
        self.when_slow = "disconnect" if flags & _DISCONNECTS else "drop_oldest" if flags & 0xFF else "wait"

    def ring(self, index: int) -> MemberRing:
        """One ring."""
        return MemberRing(self.memory, index, self.allow_pickle)

    def __reduce__(self) -> tuple:
        return RingSet, (self.memory,)


def create_fan_in(
    count: int, capacity_nbytes: int, dtype: np.dtype | None, when_full: str, allow_pickle: bool
) -> RingSet:
    """Fresh memory with a ring for each of so many senders."""
    _require_count("nsenders", count)
    ring = checked_ring(capacity_nbytes, dtype, when_full, allow_pickle)
    # Each begins on a page, so that no two senders write to one.
    stride = -(-(CONTROL_NBYTES + ring.nslots * ring.slot_nbytes) // _PAGE_NBYTES) * _PAGE_NBYTES
    params = (_FAN_IN | count << 8, stride)
    memory = ring.reserve(None, count * stride + WAITER_NBYTES, params)
    with memoryview(memory.mapping) as view:
        for i in range(count):
            with view[HEADER_NBYTES + i * stride :] as rest:
                format_ring(rest, ring.nslots, ring.slot_nbytes, drops=when_full == "drop_oldest")
        with view[HEADER_NBYTES + count * stride :] as rest:
            format_common_waiter(rest)
    memory.announce()
    return RingSet(memory, allow_pickle)


def create_broadcast(
    count: int, capacity_nbytes: int, dtype: np.dtype | None, when_slow: str, allow_pickle: bool
) -> RingSet:
    """Fresh memory with one set of slots and a ring for the sender and each of so many receivers."""
    _require_count("nreceivers", count)
    if when_slow not in WHEN_SLOW:
        raise ValueError(f"when_slow={when_slow!r}: must be one of {', '.join(WHEN_SLOW)}")
    drops = when_slow != "wait"
    ring = checked_ring(capacity_nbytes, dtype, "drop_oldest" if drops else "wait", allow_pickle)
    ring = ring._replace(flags=ring.flags | (_DISCONNECTS if when_slow == "disconnect" else 0))
    params = (_BROADCAST | count << 8, CONTROL_NBYTES)
    nbytes = (count + 1) * CONTROL_NBYTES + ring.nslots * ring.slot_nbytes
    memory = ring.reserve(None, nbytes, params)
    with memoryview(memory.mapping)[HEADER_NBYTES:] as rest:
        format_shared_slots(rest, count, ring.nslots, ring.slot_nbytes, drops)
    memory.announce()
    return RingSet(memory, allow_pickle)


def _require_count(name: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name}={count!r}: must be an int")
    if not 1 <= count <= MAX_RINGS:
        raise ValueError(f"{name}={count}: must be from 1 to {MAX_RINGS}")
