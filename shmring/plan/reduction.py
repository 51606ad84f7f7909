"""Collectives that compute, on private buffers: everything another rank needs crosses an outbox.

Every element is folded in rank order 0..p-1 by a single Reduce, whichever builder makes the plan, so that results
have the same bits for all algorithms and sizes. This rules out whatever moves partial results (trees, rings, recursive
halving): a partial result in float16 is rounded once more, and in float32 it is only right if it is a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from .limits import DEFAULT_LIMITS, Limits
from .pipeline import (
    Speech,
    Turn,
    alone,
    awaiting,
    blocks_of,
    deaf,
    extent,
    joined,
    packing,
    pipelined,
    rounds_of,
    silent,
    stages,
    up,
)
from .steps import IN, OUT, SLOT, ZERO, Affine, Await, Claim, Copy, Operand, Plan, Publish, Reduce, Release, Step
from .two_shot import two_shot


def all_reduce_one_shot(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank stages all it has and folds everything itself: one sync, p(p+3)s bytes. For small messages."""
    kind = "all_reduce"
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, folds=True)
    cut = stages([nbytes], limits.capacity)
    say, hear = _stage_whole(rank), _fold(rank, size, range(size))
    return Plan(kind, "one_shot", rank, size, *extent(cut), pipelined(cut, say, hear))


def all_reduce_two_shot(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank folds one slice for all: two syncs, (5p-2)s bytes, the least there can be with private buffers."""
    return two_shot("all_reduce", "two_shot", rank, size, nbytes, limits, tuple(range(size)), tuple(range(size)))


def reduce_flat(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """The root folds everything: one sync, (3p-1)s bytes, the least there can be, but (p+1)s of them by the root."""
    kind = "reduce"
    in_place = 0 if rank == root else None
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    cut = stages([nbytes], limits.capacity)
    if rank == root:
        loops = pipelined(cut, silent, _fold(rank, size, range(size)))
    else:
        loops = (*deaf(rounds_of(cut)), *pipelined(cut, _stage_whole(rank), silent))
    return Plan(kind, "flat", rank, size, *extent(cut), loops, in_place)


def reduce_sliced(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """The other ranks fold a slice each and the root collects: (3p+1)s bytes, of which no rank touches more than 4s.

    The root stages its operand like everyone, because it has its place in the order of summation; folding it in at the
    end, which would save those 2s, is right for the last rank only, and there only where partial results are exact.
    """
    owners = tuple(r for r in range(size) if r != root)
    return two_shot("reduce", "sliced", rank, size, nbytes, limits, owners, (root,))


def reduce_scatter(
    rank: int,
    size: int,
    nbytes: int | Sequence[int],
    itemsize: int = 1,
    limits: Limits = DEFAULT_LIMITS,
) -> Plan:
    """Every rank stages the other ranks' blocks and folds its own: one sync, (3p-1)s bytes (s = p * ``nbytes``).

    ``nbytes`` is the size of one block, i.e. of the output, or a sequence of the sizes of all.
    """
    kind = "reduce_scatter"
    sizes, places = blocks_of(nbytes, size)
    in_place = -places[rank]
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), in_place, folds=True)
    alignment = packing(size - 1, limits.capacity, itemsize)
    cut = stages(sizes, limits.capacity, lambda pieces: sum(pieces) - min(pieces), alignment)

    def packed(turn: Turn, src: int) -> list[int]:
        # Where the piece for each rank lies in the slot of `src`. Its own is not there, so the later ones move up.
        return [0, *accumulate(up(n, alignment) if r != src else 0 for r, n in enumerate(turn.stage.pieces))]

    def say(turn: Turn) -> Iterable[Step]:
        place = packed(turn, rank)
        if place[-1]:
            yield Claim(turn.round)
            yield from joined(
                Copy(
                    Operand(SLOT, rank, Affine(place[j]), turn.round),
                    Operand(IN, rank, turn.at(j, places[j])),
                    turn.stage.pieces[j],
                )
                for j in range(size)
                if j != rank and turn.stage.pieces[j]
            )
            yield Publish(turn.round)

    def hear(turn: Turn) -> Iterable[Step]:
        if own := turn.stage.pieces[rank]:
            before = packed(turn, rank)[rank]  # what lies before our piece in the slots of the ranks after us
            yield Await(turn.round)
            yield Reduce(
                Operand(OUT, rank, turn.at(rank, 0)),
                (),
                tuple(
                    Operand(IN, rank, turn.at(rank, places[rank]))
                    if r == rank
                    else Operand(
                        SLOT, r, Affine(before - (up(turn.stage.pieces[r], alignment) if r < rank else 0)), turn.round
                    )
                    for r in range(size)
                ),
                own,
            )
        yield Release(turn.round)

    return Plan(kind, "staged", rank, size, *extent(cut), pipelined(cut, say, hear), in_place)


def scan(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Rank r folds the operands of ranks 0..r: one sync, (p^2+7p-4)/2 * s bytes.

    No two ranks want the same result, so slices have no owner to share the work with; everything but the last rank's
    operand is staged once.
    """
    return _prefix("scan", rank, size, nbytes, limits, range(rank + 1))


def exscan(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Rank r folds the operands of ranks 0..r-1; the output of rank 0 is not touched."""
    return _prefix("exscan", rank, size, nbytes, limits, range(rank))


def _prefix(kind: str, rank: int, size: int, nbytes: int, limits: Limits, sources: range) -> Plan:
    if not nbytes or (size == 1 and not sources):
        return alone(kind, rank, size, 0)
    if size == 1:
        return alone(kind, rank, size, nbytes, folds=True)
    cut = stages([nbytes], limits.capacity)
    say = _stage_whole(rank) if rank < size - 1 else silent
    if sources:
        loops = pipelined(cut, say, _fold(rank, size, sources))
    else:
        loops = (*deaf(rounds_of(cut)), *pipelined(cut, say, silent))
    return Plan(kind, "staged", rank, size, *extent(cut), loops)


def _stage_whole(rank: int) -> Speech:
    def say(turn: Turn) -> Iterable[Step]:
        yield Claim(turn.round)
        yield Copy(Operand(SLOT, rank, ZERO, turn.round), Operand(IN, rank, turn.at(0, 0)), turn.stage.pieces[0])
        yield Publish(turn.round)

    return say


def _fold(rank: int, size: int, ranks: range) -> Speech:
    """Hear by folding whole operands of ``ranks``, the own one from where it is."""

    def hear(turn: Turn) -> Iterable[Step]:
        at, nbytes = turn.at(0, 0), turn.stage.pieces[0]
        sources = tuple(Operand(IN, rank, at) if r == rank else Operand(SLOT, r, ZERO, turn.round) for r in ranks)
        yield from awaiting(turn.round, [r for r in ranks if r != rank], size)
        yield Reduce(Operand(OUT, rank, at), (), sources, nbytes)
        yield Release(turn.round)

    return hear
