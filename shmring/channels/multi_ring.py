"""The memory of channels with several ends: many senders to one receiver, one sender to many.

In a *fan-in* each sender has its own ring, and the receiver sleeps on the semaphore of the first ring for all. A
*broadcast* is one ring with a head for each receiver.

    fan-in:     [header page][ring 0 and its slots][ring 1 and its slots]...
    broadcast:  [header page][ring with n heads, and its slots]
"""

from __future__ import annotations

import numpy as np

from shmring.channels.memory import WHEN_SLOW, ChannelMemory, checked_ring, require_one_of
from shmring.errors import SegmentError
from shmring.memory.header import HEADER_NBYTES, Header
from shmring.memory.segment import Segment
from shmring.ring.spsc import CONTROL_NBYTES

MAX_RINGS = 1024

_FAN_IN, _BROADCAST = 1, 2
LATEST = 3  # no ring at all (channels/latest.pyx)
_PAGE_NBYTES = 4096


class MemberRing(ChannelMemory):
    """One ring of a fan-in, or the ring of a broadcast with one of its heads, as one process sees it.

    Attributes
    ----------
    number : int
        The number of the sender of a fan-in, or of the receiver of a broadcast.
    """

    def __init__(self, memory: Segment, number: int, allow_pickle: bool | None = None) -> None:
        super().__init__(memory, allow_pickle=allow_pickle)
        layout, stride = memory.header.params[2:]
        self.nmembers = layout >> 8
        if layout & 0xFF == _FAN_IN:
            self.index = number
            self.ring_offset = HEADER_NBYTES + number * stride
        else:
            self.number = number
            self.is_broadcast = True
        if self.ring_offset + CONTROL_NBYTES > memory.nbytes or stride < CONTROL_NBYTES or stride % _PAGE_NBYTES:
            raise SegmentError("this channel is corrupted: its header has an invalid offset of the rings")
        if not 0 <= number < self.nmembers <= MAX_RINGS:
            raise SegmentError(f"this channel has {self.nmembers} rings or receivers according to its header")

    @property
    def title(self) -> str:
        """How error messages name it."""
        return "this broadcast" if self.is_broadcast else f"ring {self.index} of this channel"

    def __reduce__(self) -> tuple:
        return MemberRing, (self.memory, self.index + self.number)


def ring_heads(header: Header) -> list[tuple[int, int]]:
    """The offset of each ring in the segment of a channel of any kind, and the number of each of its heads, by the
    segment's header, which is not trusted."""
    layout, stride = header.params[2:]
    count = min(layout >> 8, MAX_RINGS)
    if layout & 0xFF == LATEST:
        return []
    if layout & 0xFF == _FAN_IN:
        return [(HEADER_NBYTES + i * stride, 0) for i in range(count)]
    return [(HEADER_NBYTES, i) for i in range(count if layout & 0xFF == _BROADCAST else 1)]


def create_fan_in(
    count: int, capacity_nbytes: int, dtype: np.dtype | None, when_full: str, allow_pickle: bool
) -> list[MemberRing]:
    """Fresh memory with a ring for each of ``count`` senders."""
    _require_count("nsenders", count)
    ring = checked_ring(capacity_nbytes, dtype, when_full, allow_pickle)
    # Each begins on a page, so that no two senders write to one.
    stride = -(-ring.nbytes // _PAGE_NBYTES) * _PAGE_NBYTES
    memory = ring.reserve(None, count * stride, (_FAN_IN | count << 8, stride))
    for i in range(count):
        ring.format(memory, HEADER_NBYTES + i * stride)
    memory.announce()
    return [MemberRing(memory, i, allow_pickle) for i in range(count)]


def create_broadcast(
    count: int,
    capacity_nbytes: int,
    dtype: np.dtype | None,
    when_slow: str,
    allow_pickle: bool,
    name: str | None = None,
) -> list[MemberRing]:
    """Fresh memory with a ring for ``count`` receivers, one `MemberRing` for each; the sender uses the first, too.

    With a ``name`` other processes can attach the segment, until the caller unlinks it.
    """
    _require_count("nreceivers", count)
    require_one_of("when_slow", when_slow, WHEN_SLOW)
    ring = checked_ring(capacity_nbytes, dtype, when_slow, allow_pickle)._replace(nheads=count)
    memory = ring.reserve(name, ring.nbytes, (_BROADCAST | count << 8, _PAGE_NBYTES))
    ring.format(memory)
    memory.announce()
    return [MemberRing(memory, i, allow_pickle) for i in range(count)]


def _require_count(name: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name}={count!r}: must be an int")
    if not 1 <= count <= MAX_RINGS:
        raise ValueError(f"{name}={count}: must be from 1 to {MAX_RINGS}")
