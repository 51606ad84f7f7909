"""On which NUMA nodes a communicator's memory lies, according to the kernel, and its ranks run: for tests."""

from itertools import pairwise
from typing import NamedTuple

from shmring.collectives.plan.pipeline import even
from shmring.core.memory.header import HEADER_NBYTES
from shmring.core.placement.cpus import processor_of
from shmring.core.placement.locality import seat_at
from shmring.core.placement.numa import bytes_by_node, current_node


class Row(NamedTuple):
    """The memory of one segment (an outbox, an array), or one rank's slice of a shared result.

    ``number`` is that of the array, in the order in which arrays were made, and 0 for an outbox; ``home`` the node on
    which its writer, ``rank``, runs now; ``nodes`` the bytes on each node, None if the kernel does not say.
    """

    kind: str
    number: int
    rank: int
    home: int
    nodes: dict[int, int] | None

    @property
    def away_nbytes(self):
        """Bytes on other nodes than ``home``."""
        return sum(nbytes for node, nbytes in self.nodes.items() if node != self.home)


def placement(comm):
    """The outboxes by rank, then the shared arrays that this process has; of the pages that it has touched."""
    engine = comm._engine
    segments = engine.segments
    homes = [current_node() if r == comm.rank else _node_of_creator(segments[r]) for r in range(comm.size)]
    rows = [Row("outbox", 0, r, homes[r], bytes_by_node(segment.mapping)) for r, segment in enumerate(segments)]
    for allocation in engine.sharing.registry.allocations() if engine.sharing else ():
        kind = "array"
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
            Row(kind, allocation.number, r, homes[r], bytes_by_node(segment.mapping, *where))
            for r, (segment, *where) in enumerate(parts)
        ]
    return rows


def _node_of_creator(segment):
    processor = processor_of(segment.header.pid, segment.header.start_time)
    return -1 if processor < 0 else seat_at(processor).node
