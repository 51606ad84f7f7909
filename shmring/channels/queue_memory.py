"""The memory of a queue: a ring, and behind it the locks that own its ends.

[header page][ring and its slots][shmring_queue]
"""

from __future__ import annotations

import os
from typing import Any

from shmring.channels.format import QUEUE_NBYTES, format_queue
from shmring.channels.memory import ChannelMemory, allows_pickle, checked_ring
from shmring.errors import SegmentError
from shmring.memory.descriptor import Descriptor
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
    signal : Descriptor or None
        The eventfd of the queue; a pipe has none, as its sockets are known to its connections.
    """

    owned_by_lock = True

    def __init__(
        self, memory: Segment, allow_pickle: bool | None = None, signal: Descriptor | None = None
    ) -> None:
        super().__init__(memory, allow_pickle=allow_pickle)
        self.signal = signal
        self.queue_offset, self.maxsize = memory.header.params[2:]
        if self.queue_offset % _ALIGNMENT or not CONTROL_NBYTES <= self.queue_offset <= memory.nbytes - QUEUE_NBYTES:
            raise SegmentError("this queue is corrupted: its header has an invalid offset of the locks")

    @property
    def title(self) -> str:
        """How error messages name it."""
        return "this queue"

    def __reduce__(self) -> tuple:
        from multiprocessing import reduction

        return _arrived, (self.memory, self.signal and reduction.DupFd(self.signal.fd))


def _arrived(memory: Segment, signal: Any) -> QueueMemory:
    """The memory that another process has passed on."""
    return QueueMemory(memory, signal=signal and Descriptor(signal.detach))


def create_queue(
    capacity_nbytes: int, maxsize: int, allow_pickle: bool | None = None, *, with_signal: bool = False
) -> QueueMemory:
    """Fresh memory for a queue."""
    allow_pickle = allows_pickle(allow_pickle)
    ring = checked_ring(capacity_nbytes, None, "wait", allow_pickle)
    ring_nbytes = -(-ring.nbytes // _ALIGNMENT) * _ALIGNMENT
    memory = ring.reserve(None, ring_nbytes + QUEUE_NBYTES, (HEADER_NBYTES + ring_nbytes, maxsize))
    ring.format(memory)
    with memoryview(memory.mapping) as view, view[HEADER_NBYTES + ring_nbytes :] as rest:
        format_queue(rest)
    memory.announce()
    signal = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if with_signal else None
    return QueueMemory(memory, allow_pickle, signal)
