"""Finds the ranks of a group that share a node: those that can map each other's memory, whatever their host names.

Containers on one machine have different host names and may share memory; equal host names prove nothing either. So
every rank creates a segment of one page and tries to map those of the lower ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from shmring.collectives.bootstrap.connect import connect
from shmring.communicator import Communicator
from shmring.config import Config
from shmring.core.memory.header import HEADER_NBYTES
from shmring.core.memory.segment import OUTBOX, Segment, create, segment_name, try_attach
from shmring.core.memory.sweep import sweep_leftovers
from shmring.errors import RendezvousError

FORCED = "SHMRING_NODE"  # ranks with different values are on different nodes
FORCED_COUNT = "SHMRING_NODES"  # the ranks of a job are on so many nodes, as if these were machines
Made = TypeVar("Made")


class Places:
    """Where the ranks of a group are.

    A *lane* is the rank at one place of each node; there are as many as the smallest node has ranks.

    Parameters
    ----------
    nodes : sequence of sequence of int
        The ranks of each node, in order.
    rank : int
        This one, which is at ``place`` of ``node``.
    """

    def __init__(self, nodes: Sequence[Sequence[int]], rank: int) -> None:
        self.nodes, self.rank, self.size = [list(ranks) for ranks in nodes], rank, sum(map(len, nodes))
        self.of = {r: (i, k) for i, ranks in enumerate(nodes) for k, r in enumerate(ranks)}
        self.node, self.place = self.of[rank]
        self.ours = self.nodes[self.node]
        self.nlanes = min(map(len, nodes))
        self.is_even = self.nlanes == max(map(len, nodes))
        self.has_lane = self.place < self.nlanes
        self.is_sorted = list(self.of) == sorted(self.of)  # all ranks of a node before those of the next

    def join_node(self, session: str, rendezvous_timeout: float | None, config: Config) -> Communicator:
        """The communicator of this rank's node; all of its ranks call."""
        if self.place == 0:
            sweep_leftovers()
        name = f"{session}.{self.node}"
        return Communicator(connect(name, self.place, len(self.ours), config, rendezvous_timeout))


def forced_node(rank: int, size: int) -> str:
    """The node that the environment gives to this rank of the whole job of ``size`` ranks; empty: the machine's."""
    text = os.environ.get(FORCED_COUNT, "")
    if FORCED in os.environ or not text:
        return os.environ.get(FORCED, "")
    if not text.isdecimal() or not 1 <= int(text) <= size:
        raise ValueError(f"{FORCED_COUNT}={text!r}: must be a number of nodes, from 1 to {size}, the number of ranks")
    return str(rank * int(text) // size)


def discover(exchange: Callable[[str], list[str]], rank: int, size: int, session: str, forced: str = "") -> Places:
    """Where the ranks are, nodes in the order of their first ranks. All ranks call.

    ``exchange(text)`` returns the texts of all ranks; ``session`` is unique to this group. Ranks with different texts
    ``forced``, of `forced_node`, are on different nodes.
    """
    names = f"{session}{forced}"

    def announced() -> tuple[Segment, str]:
        segment = create(segment_name(names, f"n{rank}"), HEADER_NBYTES, kind=OUTBOX, rank=rank, size=size)
        segment.announce()
        return segment, ""

    def withdraw(segment: Segment) -> None:
        segment.unlink()
        segment.close()

    def first_on_node() -> int:
        for r in range(rank):
            segment = try_attach(segment_name(names, f"n{r}"), kind=OUTBOX, rank=r)
            if segment is not None:
                segment.close()
                return r
        return rank

    own, _ = agree(exchange, announced, withdraw)
    try:
        _, firsts = agree(exchange, lambda: (None, str(first_on_node())))
    finally:
        withdraw(own)
    return Places([[r for r in range(size) if firsts[r] == first] for first in dict.fromkeys(firsts)], rank)


def agree(
    exchange: Callable[[str], list[str]], make: Callable[[], tuple[Made, str]], undo: Callable[[Made], object] = id
) -> tuple[Made, list[str]]:
    """Return the result of ``make()`` here, and the texts that it returns on all ranks. All ranks call.

    If it raises on one rank, that rank raises its error and all others call ``undo`` and raise `RendezvousError`.
    """
    try:
        made, text = make()
    except Exception as error:
        exchange(f"failed: {type(error).__name__}: {error}")
        raise
    outcomes = exchange(f"made: {text}")
    for r, outcome in enumerate(outcomes):
        if outcome.startswith("failed: "):
            undo(made)
            raise RendezvousError(f"rank {r} could not be connected: {outcome.removeprefix('failed: ')}")
    return made, [outcome.removeprefix("made: ") for outcome in outcomes]
