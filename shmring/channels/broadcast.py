"""The memory of a broadcast: one ring with a head for each receiver.

[header page][ring with n heads, and its slots]
"""

from __future__ import annotations

import numpy as np

from shmring.channels.memory import ChannelMemory, checked_ring
from shmring.core.base.timeouts import timeout_ns
from shmring.core.memory.header import Header
from shmring.core.memory.segment import Segment
from shmring.errors import SegmentError

MOST_RECEIVERS = 1024

# What a segment of channels has, beside a single ring: in the low byte of its third parameter.
_BROADCAST = 2
LATEST = 3  # no ring at all (channels/latest.pyx)

_MOST_NS = 1 << 62


class BroadcastMemory(ChannelMemory):
    """The memory of a broadcast, with one of its heads, as one process sees it.

    Attributes
    ----------
    number : int
        The number of the receiver.
    slow_ns : int
        A receiver that leaves no room for so long is disconnected; -1: the sender waits for it.
    """

    is_broadcast = True

    def __init__(self, memory: Segment, number: int, allow_pickle: bool | None = None) -> None:
        super().__init__(memory, allow_pickle=allow_pickle)
        layout, slow = memory.header.params[2:]
        self.number, self.nreceivers, self.slow_ns = number, layout >> 8, min(slow, _MOST_NS) - 1
        if not 0 <= number < self.nreceivers <= MOST_RECEIVERS:
            raise SegmentError(f"this broadcast has {self.nreceivers} receivers according to its header")

    @property
    def title(self) -> str:
        """How error messages name it."""
        return "this broadcast"

    def __reduce__(self) -> tuple:
        return BroadcastMemory, (self.memory, self.number)


def heads_of(header: Header) -> tuple[int, bool]:
    """The number of heads of the ring in the segment of a channel of any kind, and whether it is a broadcast, by the
    segment's header, which is not trusted; 0: there is no ring."""
    layout = header.params[2]
    is_broadcast = layout & 0xFF == _BROADCAST
    nheads = min(layout >> 8, MOST_RECEIVERS) if is_broadcast else 0 if layout & 0xFF == LATEST else 1
    return nheads, is_broadcast


def create_broadcast(
    count: int,
    capacity_nbytes: int,
    dtype: np.dtype | None,
    allow_pickle: bool,
    name: str | None = None,
    slow_timeout: float | None = None,
) -> list[BroadcastMemory]:
    """Fresh memory with a ring for ``count`` receivers, one `BroadcastMemory` for each; the sender uses the first, too.

    With a ``name`` other processes can attach the segment, until the caller unlinks it.
    """
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"nreceivers={count!r}: must be an int")
    if not 1 <= count <= MOST_RECEIVERS:
        raise ValueError(f"nreceivers={count}: must be from 1 to {MOST_RECEIVERS}")
    slow_ns = timeout_ns(slow_timeout, "slow_timeout")
    ring = checked_ring(capacity_nbytes, dtype, "wait", allow_pickle)._replace(nheads=count)
    memory = ring.reserve(name, ring.nbytes, (_BROADCAST | count << 8, slow_ns + 1))
    ring.format(memory)
    memory.announce()
    return [BroadcastMemory(memory, i, allow_pickle) for i in range(count)]
