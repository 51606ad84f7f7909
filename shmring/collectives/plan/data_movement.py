"""Collectives that only move bytes, on private buffers.

``nbytes`` is the size of the block that one rank contributes (scatter: receives), or a sequence of sizes, one per rank;
blocks lie packed in rank order in the larger buffer. All-to-all takes one size for all pairs, or a matrix
``nbytes[source][destination]``. All ranks pass the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from .limits import DEFAULT_LIMITS, Limits
from .pipeline import (
    BlockSizes,
    Iteration,
    alone,
    await_ranks,
    blocks_of,
    extent,
    merged,
    no_steps,
    packed,
    peers,
    pipelined,
    release_all,
    round_groups,
    round_up,
    rounds_of,
    slot_alignment,
    staging,
    staging_packed,
)
from .steps import IN, OUT, SLOT, ZERO, Affine, Claim, Copy, Operand, Plan, Publish, Release, Step


def broadcast(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """The root stages its IN once, the others copy it to their OUT: 2ps bytes. The root's OUT is not touched."""
    kind = "broadcast"
    if size == 1 or not nbytes:
        return alone(kind, rank, size, 0)
    cut = round_groups([nbytes], limits.capacity)

    def consume(it: Iteration) -> Iterable[Step]:
        yield from await_ranks(it.round, (root,), size)
        yield Copy(Operand(OUT, rank, it.at(0, 0)), Operand(SLOT, root, ZERO, it.round), it.group.pieces[0])
        yield Release(it.round)

    loops = pipelined(cut, staging(rank, 0), no_steps) if rank == root else pipelined(cut, no_steps, consume)
    return Plan(kind, "staged", rank, size, *extent(cut), loops)


def all_gather(rank: int, size: int, nbytes: BlockSizes, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank stages its block, the others copy it out: one sync, 2p^2 m bytes in place."""
    kind = "all_gather"
    sizes, places = blocks_of(nbytes, size)
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), places[rank])
    cut = round_groups(sizes, limits.capacity)

    def produce(it: Iteration) -> Iterable[Step]:
        yield from staging(rank, rank)(it)
        yield from _keep_own(rank, it, places[rank])

    def consume(it: Iteration) -> Iterable[Step]:
        yield from _collect(rank, size, it, places)
        yield Release(it.round)

    return Plan(kind, "staged", rank, size, *extent(cut), pipelined(cut, produce, consume), places[rank])


def gather(
    rank: int, size: int, nbytes: BlockSizes, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """Every rank stages its block, the root copies them out: one sync, 4(p-1)m bytes in place."""
    kind = "gather"
    sizes, places = blocks_of(nbytes, size)
    in_place = places[root] if rank == root else None
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), in_place)
    cut = round_groups(sizes, limits.capacity, lambda pieces: max(n for r, n in enumerate(pieces) if r != root))

    def consume(it: Iteration) -> Iterable[Step]:
        yield from _collect(rank, size, it, places)
        yield Release(it.round)

    if rank == root:
        loops = pipelined(cut, lambda it: _keep_own(rank, it, places[root]), consume)
    else:
        loops = (*release_all(rounds_of(cut)), *pipelined(cut, staging(rank, rank), no_steps))
    return Plan(kind, "staged", rank, size, *extent(cut), loops, in_place)


def scatter(
    rank: int, size: int, nbytes: BlockSizes, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """The root stages a piece of every other rank's block in each round: one sync, 4(p-1)m bytes in place."""
    kind = "scatter"
    sizes, places = blocks_of(nbytes, size)
    in_place = -places[root] if rank == root else None
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), in_place)
    alignment = slot_alignment(size - 1, limits.capacity, 1)
    cut = round_groups(sizes, limits.capacity, lambda pieces: sum(pieces) - pieces[root], alignment)

    def produce(it: Iteration) -> Iterable[Step]:
        yield from staging_packed(root, places, alignment)(it)
        if it.group.pieces[root]:
            yield Copy(
                Operand(OUT, rank, it.at(root, 0)),
                Operand(IN, rank, it.at(root, places[root])),
                it.group.pieces[root],
            )

    def consume(it: Iteration) -> Iterable[Step]:
        if it.group.pieces[rank]:
            yield from await_ranks(it.round, (root,), size)
            yield Copy(
                Operand(OUT, rank, it.at(rank, 0)),
                Operand(SLOT, root, Affine(packed(it, root, alignment)[rank]), it.round),
                it.group.pieces[rank],
            )
        yield Release(it.round)

    loops = pipelined(cut, produce, no_steps) if rank == root else pipelined(cut, no_steps, consume)
    return Plan(kind, "staged", rank, size, *extent(cut), loops, in_place)


def all_to_all(
    rank: int, size: int, nbytes: int | Sequence[Sequence[int]], itemsize: int = 1, limits: Limits = DEFAULT_LIMITS
) -> Plan:
    """Every rank stages a piece of every other rank's block in each round: one sync, 4p(p-1)m bytes in place.

    In place only if every rank sends each peer as much as it gets from it.
    """
    kind = "all_to_all"
    pairs = _Pairs(rank, size, nbytes, limits)
    if size == 1 or not pairs.cut:
        return alone(kind, rank, size, pairs.sent[0] if size == 1 else 0, pairs.in_place)

    def produce(it: Iteration) -> Iterable[Step]:
        place = pairs.packed(it, rank)
        copies = [
            Copy(
                Operand(SLOT, rank, Affine(place[j]), it.round),
                Operand(IN, rank, it.at(pairs.block(rank, j), pairs.sent_at[j])),
                n,
            )
            for j in range(size)
            if j != rank and (n := pairs.piece(it, rank, j))
        ]
        if copies:
            yield Claim(it.round)
            yield from merged(copies)
            yield Publish(it.round)
        if own := pairs.piece(it, rank, rank):
            block = pairs.block(rank, rank)
            yield Copy(
                Operand(OUT, rank, it.at(block, pairs.got_at[rank])),
                Operand(IN, rank, it.at(block, pairs.sent_at[rank])),
                own,
            )

    def consume(it: Iteration) -> Iterable[Step]:
        senders = [r for r in peers(rank, size) if pairs.piece(it, r, rank)]
        yield from await_ranks(it.round, senders, size)
        for r in senders:
            yield Copy(
                Operand(OUT, rank, it.at(pairs.block(r, rank), pairs.got_at[r])),
                Operand(SLOT, r, Affine(pairs.place_here(it, r)), it.round),
                pairs.piece(it, r, rank),
            )
        yield Release(it.round)

    return Plan(kind, "staged", rank, size, *extent(pairs.cut), pipelined(pairs.cut, produce, consume), pairs.in_place)


class _Pairs:
    """The block sizes of all pairs of ranks, seen by one rank: uniform (one block for all) or one per pair."""

    def __init__(self, rank: int, size: int, nbytes: int | Sequence[Sequence[int]], limits: Limits) -> None:
        self.rank, self.size, self.uniform = rank, size, isinstance(nbytes, int)
        self.alignment = slot_alignment(size - 1, limits.capacity, 1)
        self.in_place: int | None = 0
        if isinstance(nbytes, int):
            self.sent = self.got = [nbytes] * size
            self.cut = round_groups([nbytes], limits.capacity, lambda n: (size - 1) * n[0], self.alignment)
        else:
            self.sent, self.got = list(nbytes[rank]), [row[rank] for row in nbytes]
            self.cut = round_groups([n for row in nbytes for n in row], limits.capacity, self.fullest, self.alignment)
            if self.sent != self.got:
                self.in_place = None
        self.sent_at = [0, *accumulate(self.sent)]
        self.got_at = [0, *accumulate(self.got)]

    def fullest(self, pieces: list[int]) -> int:
        """The most that any rank stages: the sum of its row, without the block for itself."""
        p = self.size
        return max(sum(pieces[r * p : (r + 1) * p]) - pieces[r * p + r] for r in range(p))

    def block(self, src: int, dst: int) -> int:
        """Index of the block that ``src`` sends to ``dst``."""
        return 0 if self.uniform else src * self.size + dst

    def piece(self, it: Iteration, src: int, dst: int) -> int:
        """Bytes from ``src`` to ``dst`` in one round."""
        return it.group.pieces[self.block(src, dst)]

    def packed(self, it: Iteration, src: int) -> list[int]:
        """Offset of each rank's piece in the slot of ``src``; the piece for ``src`` itself is not staged."""
        aligned = (round_up(self.piece(it, src, j), self.alignment) if j != src else 0 for j in range(self.size))
        return [0, *accumulate(aligned)]

    def place_here(self, it: Iteration, src: int) -> int:
        """Offset of this rank's piece in the slot of ``src``."""
        if self.uniform:
            return (self.rank - (self.rank > src)) * round_up(it.group.pieces[0], self.alignment)
        return self.packed(it, src)[self.rank]


def _keep_own(rank: int, it: Iteration, place: int) -> Iterable[Step]:
    """Copy the input to this rank's block of the output; after the publish, so that no rank waits for it."""
    if n := it.group.pieces[rank]:
        yield Copy(Operand(OUT, rank, it.at(rank, place)), Operand(IN, rank, it.at(rank, 0)), n)


def _collect(rank: int, size: int, it: Iteration, places: list[int]) -> Iterable[Step]:
    senders = [r for r in peers(rank, size) if it.group.pieces[r]]
    yield from await_ranks(it.round, senders, size)
    for r in senders:
        yield Copy(Operand(OUT, rank, it.at(r, places[r])), Operand(SLOT, r, ZERO, it.round), it.group.pieces[r])
