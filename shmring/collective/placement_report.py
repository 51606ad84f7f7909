"""The placement report: on which NUMA nodes a communicator's memory is, according to the kernel, and its ranks run."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from shmring.memory.header import HEADER_NBYTES
from shmring.placement.cpus import processor_of
from shmring.placement.locality import seat_at
from shmring.placement.numa import bytes_by_node, current_node
from shmring.plan.pipeline import even

if TYPE_CHECKING:
    from shmring.memory.segment import Segment


class SegmentPlacement(NamedTuple):
    """The NUMA nodes of the memory of one segment, or of one rank's slice of a shared result.

    Attributes
    ----------
    kind : {"outbox", "array", "result"}
    number : int
        The number of the array, from 1 on in the order in which the arrays were made; 0 for an outbox.
    rank : int
        The rank that writes it.
    home : int
        The node on which that rank runs now; -1 where this process cannot see it.
    nodes : dict of int to int, or None
        Bytes on each node. Pages without memory yet, and pages that this process never touched, are on none. None if
        the kernel gives no information.
    """

    kind: str
    number: int
    rank: int
    home: int
    nodes: dict[int, int] | None

    @property
    def away_nbytes(self) -> int:
        """Bytes on other nodes than the one on which the rank runs now; 0 if that is not known."""
        if self.nodes is None or self.home < 0:
            return 0
        return sum(nbytes for node, nbytes in self.nodes.items() if node != self.home)


def placement(comm: Any) -> list[SegmentPlacement]:
    """See `Communicator.placement`."""
    engine = comm.engine
    segments = engine.segments  # another thread may close meanwhile
    if engine.is_closed:
        engine.refuse()
    homes = [current_node() if r == comm.rank else _node_of_creator(segments[r]) for r in range(comm.size)]
    rows = [
        SegmentPlacement("outbox", 0, r, homes[r], bytes_by_node(segment.mapping)) for r, segment in enumerate(segments)
    ]
    for allocation in engine.sharing.registry.allocations() if engine.sharing else ():
        kind = "array"
        parts: list[tuple[Any, ...]]  # by rank: the segment, and a range of it unless it is the whole
        if allocation.offsets is not None:  # one of several in these segments
            parts = [
                (segment, HEADER_NBYTES + offset, allocation.nbytes)
                for segment, offset in zip(allocation.segments, allocation.offsets, strict=True)
            ]
        elif not allocation.is_result:
            parts = [(segment,) for segment in allocation.segments]
        else:
            kind, (segment,) = "result", allocation.segments
            parts = [(segment, HEADER_NBYTES + a, b - a) for a, b in pairwise(even(allocation.nbytes, comm.size))]
        rows += [
            SegmentPlacement(kind, allocation.number, r, homes[r], bytes_by_node(segment.mapping, *where))
            for r, (segment, *where) in enumerate(parts)
        ]
    return rows


def _node_of_creator(segment: Segment) -> int:
    """The node on which the creator of a segment runs now; -1 if it is dead or in another PID namespace."""
    processor = processor_of(segment.header.pid, segment.header.start_time)
    return -1 if processor < 0 else seat_at(processor).node
