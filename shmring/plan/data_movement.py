"""Collectives that only move bytes, on private buffers.

``nbytes`` is the size of what one rank gives (or, scatter: gets), or a sequence of such sizes, one per rank; blocks lie
packed in rank order in the larger buffer. All-to-all takes a size per pair, or a matrix
``nbytes[source][destination]``. All ranks pass the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from .limits import DEFAULT_LIMITS, Limits
from .pipeline import (
    Turn,
    alone,
    awaiting,
    blocks_of,
    deaf,
    extent,
    joined,
    packing,
    peers,
    pipelined,
    rounds_of,
    silent,
    stages,
    up,
)
from .steps import IN, OUT, SLOT, ZERO, Affine, Claim, Copy, Operand, Plan, Publish, Release, Step


def broadcast(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """The root stages its IN once, the others copy it to their OUT: 2ps bytes. The root's OUT is not touched."""
    kind = "broadcast"
    if size == 1 or not nbytes:
        return alone(kind, rank, size, 0)
    cut = stages([nbytes], limits.capacity)

    def say(turn: Turn) -> Iterable[Step]:
        yield Claim(turn.round)
        yield Copy(Operand(SLOT, rank, ZERO, turn.round), Operand(IN, rank, turn.at(0, 0)), turn.stage.pieces[0])
        yield Publish(turn.round)

    def hear(turn: Turn) -> Iterable[Step]:
        yield from awaiting(turn.round, (root,), size)
        yield Copy(Operand(OUT, rank, turn.at(0, 0)), Operand(SLOT, root, ZERO, turn.round), turn.stage.pieces[0])
        yield Release(turn.round)

    loops = pipelined(cut, say, silent) if rank == root else pipelined(cut, silent, hear)
    return Plan(kind, "staged", rank, size, *extent(cut), loops)


def all_gather(
    rank: int,
    size: int,
    nbytes: int | Sequence[int],
    itemsize: int = 1,
    limits: Limits = DEFAULT_LIMITS,
) -> Plan:
    """Every rank stages its block, the others copy it out: one sync, 2p^2 m bytes in place."""
    kind = "all_gather"
    sizes, places = blocks_of(nbytes, size)
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), places[rank])
    cut = stages(sizes, limits.capacity)

    def say(turn: Turn) -> Iterable[Step]:
        if turn.stage.pieces[rank]:
            yield from _stage_own(rank, turn)
            yield from _keep_own(rank, turn, places[rank])

    def hear(turn: Turn) -> Iterable[Step]:
        yield from _collect(rank, size, turn, places)
        yield Release(turn.round)

    return Plan(kind, "staged", rank, size, *extent(cut), pipelined(cut, say, hear), places[rank])


def gather(
    rank: int,
    size: int,
    nbytes: int | Sequence[int],
    itemsize: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    root: int = 0,
) -> Plan:
    """Every rank stages its block, the root copies them out: one sync, 4(p-1)m bytes in place."""
    kind = "gather"
    sizes, places = blocks_of(nbytes, size)
    in_place = places[root] if rank == root else None
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), in_place)
    cut = stages(sizes, limits.capacity, lambda pieces: max(n for r, n in enumerate(pieces) if r != root))

    def say(turn: Turn) -> Iterable[Step]:
        if turn.stage.pieces[rank]:
            yield from _keep_own(rank, turn, places[root]) if rank == root else _stage_own(rank, turn)

    def hear(turn: Turn) -> Iterable[Step]:
        yield from _collect(rank, size, turn, places)
        yield Release(turn.round)

    loops = pipelined(cut, say, hear) if rank == root else (*deaf(rounds_of(cut)), *pipelined(cut, say, silent))
    return Plan(kind, "staged", rank, size, *extent(cut), loops, in_place)


def scatter(
    rank: int,
    size: int,
    nbytes: int | Sequence[int],
    itemsize: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    root: int = 0,
) -> Plan:
    """The root stages a piece of every other rank's block in each round: one sync, 4(p-1)m bytes in place."""
    kind = "scatter"
    sizes, places = blocks_of(nbytes, size)
    in_place = -places[root] if rank == root else None
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), in_place)
    others = peers(root, size)
    alignment = packing(size - 1, limits.capacity, 1)
    cut = stages(sizes, limits.capacity, lambda pieces: sum(pieces) - pieces[root], alignment)

    def packed(turn: Turn) -> list[int]:
        # Where each rank's piece lies in the slot; the root's own is not there.
        return [0, *accumulate(up(n, alignment) if r != root else 0 for r, n in enumerate(turn.stage.pieces))]

    def say(turn: Turn) -> Iterable[Step]:
        place = packed(turn)
        if place[-1]:
            yield Claim(turn.round)
            yield from joined(
                Copy(
                    Operand(SLOT, rank, Affine(place[j]), turn.round),
                    Operand(IN, rank, turn.at(j, places[j])),
                    turn.stage.pieces[j],
                )
                for j in sorted(others)
                if turn.stage.pieces[j]
            )
            yield Publish(turn.round)
        if turn.stage.pieces[root]:
            yield Copy(
                Operand(OUT, rank, turn.at(root, 0)),
                Operand(IN, rank, turn.at(root, places[root])),
                turn.stage.pieces[root],
            )

    def hear(turn: Turn) -> Iterable[Step]:
        if turn.stage.pieces[rank]:
            yield from awaiting(turn.round, (root,), size)
            yield Copy(
                Operand(OUT, rank, turn.at(rank, 0)),
                Operand(SLOT, root, Affine(packed(turn)[rank]), turn.round),
                turn.stage.pieces[rank],
            )
        yield Release(turn.round)

    loops = pipelined(cut, say, silent) if rank == root else pipelined(cut, silent, hear)
    return Plan(kind, "staged", rank, size, *extent(cut), loops, in_place)


def all_to_all(
    rank: int,
    size: int,
    nbytes: int | Sequence[Sequence[int]],
    itemsize: int = 1,
    limits: Limits = DEFAULT_LIMITS,
) -> Plan:
    """Every rank stages a piece of every other rank's block in each round: one sync, 4p(p-1)m bytes in place.

    In place only if every rank sends each peer as much as it gets from it.
    """
    kind = "all_to_all"
    wire = _Pairs(rank, size, nbytes, limits)
    if size == 1 or not wire.cut:
        return alone(kind, rank, size, wire.sent[0] if size == 1 else 0, wire.in_place)

    def say(turn: Turn) -> Iterable[Step]:
        place = wire.packed(turn, rank)
        copies = [
            Copy(
                Operand(SLOT, rank, Affine(place[j]), turn.round),
                Operand(IN, rank, turn.at(wire.block(rank, j), wire.sent_at[j])),
                n,
            )
            for j in range(size)
            if j != rank and (n := wire.piece(turn, rank, j))
        ]
        if copies:
            yield Claim(turn.round)
            yield from joined(copies)
            yield Publish(turn.round)
        if own := wire.piece(turn, rank, rank):
            block = wire.block(rank, rank)
            yield Copy(
                Operand(OUT, rank, turn.at(block, wire.got_at[rank])),
                Operand(IN, rank, turn.at(block, wire.sent_at[rank])),
                own,
            )

    def hear(turn: Turn) -> Iterable[Step]:
        senders = [r for r in peers(rank, size) if wire.piece(turn, r, rank)]
        yield from awaiting(turn.round, senders, size)
        for r in senders:
            yield Copy(
                Operand(OUT, rank, turn.at(wire.block(r, rank), wire.got_at[r])),
                Operand(SLOT, r, Affine(wire.place_here(turn, r)), turn.round),
                wire.piece(turn, r, rank),
            )
        yield Release(turn.round)

    return Plan(kind, "staged", rank, size, *extent(wire.cut), pipelined(wire.cut, say, hear), wire.in_place)


class _Pairs:
    """Who sends how much to whom, uniform (one block stands for all) or not (a block per pair), seen by one rank."""

    def __init__(self, rank: int, size: int, nbytes: int | Sequence[Sequence[int]], limits: Limits) -> None:
        self.rank, self.size, self.uniform = rank, size, isinstance(nbytes, int)
        self.alignment = packing(size - 1, limits.capacity, 1)
        self.in_place: int | None = 0
        if isinstance(nbytes, int):
            self.sent = self.got = [nbytes] * size
            self.cut = stages([nbytes], limits.capacity, lambda n: (size - 1) * n[0], self.alignment)
        else:
            self.sent, self.got = list(nbytes[rank]), [row[rank] for row in nbytes]
            self.cut = stages([n for row in nbytes for n in row], limits.capacity, self.fullest, self.alignment)
            if self.sent != self.got:
                self.in_place = None
        self.sent_at = [0, *accumulate(self.sent)]
        self.got_at = [0, *accumulate(self.got)]

    def fullest(self, pieces: list[int]) -> int:
        """The most that any rank says: a row, without what it keeps for itself."""
        p = self.size
        return max(sum(pieces[r * p : (r + 1) * p]) - pieces[r * p + r] for r in range(p))

    def block(self, src: int, dst: int) -> int:
        """Which block of a stage stands for what ``src`` sends to ``dst``."""
        return 0 if self.uniform else src * self.size + dst

    def piece(self, turn: Turn, src: int, dst: int) -> int:
        """How much of it goes in one round."""
        return turn.stage.pieces[self.block(src, dst)]

    def packed(self, turn: Turn, src: int) -> list[int]:
        """Where the pieces for each rank lie in the slot of ``src``; its own is not there."""
        aligned = (up(self.piece(turn, src, j), self.alignment) if j != src else 0 for j in range(self.size))
        return [0, *accumulate(aligned)]

    def place_here(self, turn: Turn, src: int) -> int:
        """Where the piece for this rank lies in the slot of ``src``."""
        if self.uniform:
            return (self.rank - (self.rank > src)) * up(turn.stage.pieces[0], self.alignment)
        return self.packed(turn, src)[self.rank]


def _stage_own(rank: int, turn: Turn) -> Iterable[Step]:
    yield Claim(turn.round)
    yield Copy(Operand(SLOT, rank, ZERO, turn.round), Operand(IN, rank, turn.at(rank, 0)), turn.stage.pieces[rank])
    yield Publish(turn.round)


def _keep_own(rank: int, turn: Turn, place: int) -> Iterable[Step]:
    """Input to the own block of the output; after the publish, so that nobody waits for it."""
    yield Copy(Operand(OUT, rank, turn.at(rank, place)), Operand(IN, rank, turn.at(rank, 0)), turn.stage.pieces[rank])


def _collect(rank: int, size: int, turn: Turn, places: list[int]) -> Iterable[Step]:
    senders = [r for r in peers(rank, size) if turn.stage.pieces[r]]
    yield from awaiting(turn.round, senders, size)
    for r in senders:
        yield Copy(Operand(OUT, rank, turn.at(r, places[r])), Operand(SLOT, r, ZERO, turn.round), turn.stage.pieces[r])
