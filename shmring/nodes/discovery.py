"""Finds the ranks of a group that share a node: those that can map each other's memory, whatever their host names.

Containers on one machine have different host names and may share memory; equal host names prove nothing either. So
every rank creates a segment of one page and tries to map those of the lower ranks. The lowest rank whose segment it can
map identifies its node.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from shmring.errors import RendezvousError
from shmring.memory.header import HEADER_NBYTES
from shmring.memory.segment import OUTBOX, Segment, create, segment_name, try_attach

FORCED = "SHMRING_NODE"  # ranks with different values are on different nodes
FORCED_COUNT = "SHMRING_NODES"  # the ranks of a job are on so many nodes, as if these were machines


def forced_node(rank: int, size: int) -> str:
    """The node that the environment gives to this rank of the whole job of ``size`` ranks; empty: the machine's."""
    text = os.environ.get(FORCED_COUNT, "")
    if FORCED in os.environ or not text:
        return os.environ.get(FORCED, "")
    if not text.isdecimal() or not 1 <= int(text) <= size:
        raise ValueError(f"{FORCED_COUNT}={text!r}: must be a number of nodes, from 1 to {size}, the number of ranks")
    return str(rank * int(text) // size)


def discover_nodes(
    exchange: Callable[[str], list[str]], rank: int, size: int, session: str, forced: str = ""
) -> list[list[int]]:
    """The ranks of each node in order, nodes in the order of their first ranks. All ranks call.

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

    own, _ = agree(exchange, announced, withdraw)
    try:
        _, texts = agree(exchange, lambda: (None, str(_first_on_node(names, rank))))
    finally:
        withdraw(own)
    firsts = [int(text) for text in texts]
    return [[r for r in range(size) if firsts[r] == first] for first in sorted(set(firsts))]


Made = TypeVar("Made")


def agree(
    exchange: Callable[[str], list[str]], make: Callable[[], tuple[Made, str]], undo: Callable[[Made], object] = id
) -> tuple[Made, list[str]]:
    """Return the result of ``make()`` here, and the texts that it returns on all ranks. All ranks call.

    If it raises on one rank, that rank raises its error and all others call ``undo`` and raise `RendezvousError`. So no
    rank waits for one that has failed.
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


def _first_on_node(names: str, rank: int) -> int:
    for r in range(rank):
        segment = try_attach(segment_name(names, f"n{r}"), kind=OUTBOX, rank=r)
        if segment is not None:
            segment.close()
            return r
    return rank
