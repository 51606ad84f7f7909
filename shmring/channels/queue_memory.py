"""The memory of a queue: a ring, and behind it the locks that own its ends.

[header page][ring and its slots][shmring_queue]
"""

from __future__ import annotations

from shmring.channels.format import QUEUE_NBYTES, format_queue
from shmring.channels.memory import ChannelMemory, allows_pickle, checked_ring
from shmring.errors import SegmentError
from shmring.memory.header import HEADER_NBYTES
from shmring.memory.segment import Segment
from shmring.ring.spsc import CONTROL_NBYTES

_ALIGNMENT = 128


class QueueMemory(ChannelMemory):
    """The memory that the processes of a queue share, as one process sees it.

    Attributes
    ----------
    queue_offset : int
        Of the locks.
    maxsize : int
    """

    owned_by_lock = True

    def __init__(self, memory: Segment, allow_pickle: bool | None = None) -> None:
        super().__init__(memory, allow_pickle=allow_pickle)
        self.queue_offset, self.maxsize = memory.header.params[2:]
        if self.queue_offset % _ALIGNMENT or not CONTROL_NBYTES <= self.queue_offset <= memory.nbytes - QUEUE_NBYTES:
            raise SegmentError("this queue is corrupted: its header has an invalid offset of the locks")

    @property
    def title(self) -> str:
        """How error messages name it."""
        return "this queue"

    def __reduce__(self) -> tuple:
        return QueueMemory, (self.memory,)


def create_queue(capacity_nbytes: int, maxsize: int, allow_pickle: bool | None = None) -> QueueMemory:
    """Fresh memory for a queue."""
    allow_pickle = allows_pickle(allow_pickle)
    ring = checked_ring(capacity_nbytes, None, "wait", allow_pickle)
    ring_nbytes = -(-ring.nbytes // _ALIGNMENT) * _ALIGNMENT
    memory = ring.reserve(None, ring_nbytes + QUEUE_NBYTES, (HEADER_NBYTES + ring_nbytes, maxsize))
    ring.format(memory)
    with memoryview(memory.mapping) as view, view[HEADER_NBYTES + ring_nbytes :] as rest:
        format_queue(rest)
    memory.announce()
    return QueueMemory(memory, allow_pickle)
