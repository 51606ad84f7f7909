"""Reductions on private buffers: everything another rank needs is staged in an outbox.

A single Reduce folds every element in rank order 0..p-1, whichever builder makes the plan, so that results have the
same bits for all algorithms and sizes. This rules out algorithms that move partial results (trees, rings, recursive
halving): a partial result in float16 is rounded once more, and in float32 it is only right if it is a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable

from .limits import DEFAULT_LIMITS, Limits
from .pipeline import (
    BlockSizes,
    Iteration,
    IterationSteps,
    alone,
    await_ranks,
    blocks_of,
    extent,
    no_steps,
    packed,
    pipelined,
    release_all,
    round_groups,
    round_up,
    rounds_of,
    slot_alignment,
    staging,
    staging_packed,
)
from .steps import IN, OUT, SLOT, ZERO, Affine, Await, Operand, Plan, Reduce, Release, Step
from .two_shot import two_shot


def all_reduce_one_shot(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank stages its vector and folds all vectors itself: one sync, p(p+3)s bytes. For small messages."""
    kind = "all_reduce"
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, folds=True)
    cut = round_groups([nbytes], limits.capacity)
    loops = pipelined(cut, staging(rank, 0), _fold(rank, size, range(size)))
    return Plan(kind, "one_shot", rank, size, *extent(cut), loops)


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
    cut = round_groups([nbytes], limits.capacity)
    if rank == root:
        loops = pipelined(cut, no_steps, _fold(rank, size, range(size)))
    else:
        loops = (*release_all(rounds_of(cut)), *pipelined(cut, staging(rank, 0), no_steps))
    return Plan(kind, "flat", rank, size, *extent(cut), loops, in_place)


def reduce_sliced(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """The other ranks fold a slice each and the root collects: (3p+1)s bytes, of which no rank touches more than 4s.

    The root stages its operand like every rank, because summation is in rank order. Folding it in at the end would save
    2s, but is right only if the root is the last rank and partial results are exact.
    """
    owners = tuple(r for r in range(size) if r != root)
    return two_shot("reduce", "sliced", rank, size, nbytes, limits, owners, (root,))


def reduce_scatter(
    rank: int, size: int, nbytes: BlockSizes, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS
) -> Plan:
    """Every rank stages the other ranks' blocks and folds its own: one sync, (3p-1)s bytes (s = p * ``nbytes``).

    ``nbytes`` is the size of one block, i.e. of the output, or a sequence of all sizes.
    """
    kind = "reduce_scatter"
    sizes, places = blocks_of(nbytes, size)
    in_place = -places[rank]
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), in_place, folds=True)
    alignment = slot_alignment(size - 1, limits.capacity, itemsize)
    cut = round_groups(sizes, limits.capacity, lambda pieces: sum(pieces) - min(pieces), alignment)

    def consume(it: Iteration) -> Iterable[Step]:
        if own := it.group.pieces[rank]:
            before = packed(it, rank, alignment)[rank]  # offset of this rank's piece in the slots of later ranks
            yield Await(it.round)
            yield Reduce(
                Operand(OUT, rank, it.at(rank, 0)),
                (),
                tuple(
                    Operand(IN, rank, it.at(rank, places[rank]))
                    if r == rank
                    else Operand(
                        SLOT, r, Affine(before - (round_up(it.group.pieces[r], alignment) if r < rank else 0)), it.round
                    )
                    for r in range(size)
                ),
                own,
            )
        yield Release(it.round)

    loops = pipelined(cut, staging_packed(rank, places, alignment), consume)
    return Plan(kind, "staged", rank, size, *extent(cut), loops, in_place)


def scan(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Rank r folds the operands of ranks 0..r: one sync, (p^2+7p-4)/2 * s bytes.

    No two ranks need the same result, so slices would save nothing. Every operand but the last is staged once.
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
    cut = round_groups([nbytes], limits.capacity)
    produce = staging(rank, 0) if rank < size - 1 else no_steps
    if sources:
        loops = pipelined(cut, produce, _fold(rank, size, sources))
    else:
        loops = (*release_all(rounds_of(cut)), *pipelined(cut, produce, no_steps))
    return Plan(kind, "staged", rank, size, *extent(cut), loops)


def _fold(rank: int, size: int, ranks: range) -> IterationSteps:
    """Consume a round: fold the whole operands of ``ranks``, this rank's own from its input."""

    def consume(it: Iteration) -> Iterable[Step]:
        at, nbytes = it.at(0, 0), it.group.pieces[0]
        sources = tuple(Operand(IN, rank, at) if r == rank else Operand(SLOT, r, ZERO, it.round) for r in ranks)
        yield from await_ranks(it.round, [r for r in ranks if r != rank], size)
        yield Reduce(Operand(OUT, rank, at), (), sources, nbytes)
        yield Release(it.round)

    return consume
