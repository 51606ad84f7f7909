"""Collectives on shared arrays: every rank can load and store the buffers of all ranks, and nothing is staged.

Two rounds without data frame the work. A rank publishes the *entry* when its buffers are ready, and the *exit* when it
no longer uses those of other ranks. It awaits only the ranks it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence

from .limits import DEFAULT_LIMITS, Limits
from .pipeline import BlockSizes, alone, blocks_of, even, peers
from .steps import IN, OUT, Affine, Await, Claim, Copy, Loop, Operand, Plan, Publish, Reduce, Step

ENTRY, EXIT = Affine(0), Affine(1)

# A rank copies its own block last if blocks have this size: 0.9 to 0.95 of the time where the kernel copies 4 MiB, but
# 1.2 where ranks copy 64 KiB from shared arrays.
OWN_LAST_NBYTES = 1 << 19


def all_reduce(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank folds one slice of all inputs and stores it into all outputs: 2ps bytes, the least possible.

    Works in place, because only its owner reads and writes a slice.
    """
    return _by_slices("all_reduce", rank, size, nbytes, outputs=(rank, *peers(rank, size)), in_place=0)


def all_reduce_shared(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """All-reduce with one shared result, in the OUT of ``root``: (p+1)s bytes."""
    plan = _by_slices("all_reduce", rank, size, nbytes, outputs=(root,), in_place=0 if rank == root else None)
    return plan._replace(algorithm="zero_copy_shared" if plan.zero_copy else plan.algorithm)


def reduce(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """Every rank folds one slice of all inputs straight into the root's output: (p+1)s bytes."""
    return _by_slices("reduce", rank, size, nbytes, outputs=(root,), in_place=0 if rank == root else None)


def reduce_scatter(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank folds its block of all inputs into its output: (p+1)s bytes (s = p * ``nbytes``)."""
    kind, in_place = "reduce_scatter", -rank * nbytes
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    block = Affine(rank * nbytes)
    sources = tuple(Operand(IN, r, block) for r in range(size))
    work = [Reduce(Operand(OUT, rank, Affine(0)), (), sources, nbytes)]
    return _framed(kind, rank, size, work, in_place)


def broadcast(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """Every rank copies from the root's IN, starting at a different offset: 2(p-1)s bytes.

    If every rank stored one slice into all outputs, each byte would be loaded only once (ps bytes), but the result
    would be in the caches of the wrong ranks.
    """
    kind = "broadcast"
    if size == 1 or not nbytes:
        return alone(kind, rank, size, 0)
    begin = even(nbytes, size)[rank]
    work: list[Step] = [
        Copy(Operand(OUT, rank, Affine(lo)), Operand(IN, root, Affine(lo)), hi - lo)
        for lo, hi in ((begin, nbytes), (0, begin))
        if lo < hi
    ]
    return _with_root(kind, rank, size, root, work if rank != root else [])


def all_gather(rank: int, size: int, nbytes: BlockSizes, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank copies every block: 2p(p-1)m bytes in place."""
    kind = "all_gather"
    sizes, places = blocks_of(nbytes, size)
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), places[rank])
    work = [
        Copy(Operand(OUT, rank, Affine(places[r])), Operand(IN, r, Affine(0)), sizes[r])
        for r in _order(rank, size, max(sizes))
        if sizes[r]
    ]
    return _framed(kind, rank, size, work, places[rank])


def all_gather_shared(
    rank: int, size: int, nbytes: BlockSizes, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """All-gather with one shared result, in the OUT of ``root``: every rank stores its block, 2pm bytes.

    Only the owner of an input loads it, so inputs need not be shared.
    """
    kind = "all_gather"
    sizes, places = blocks_of(nbytes, size)
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), places[rank])
    own = _copies(Operand(OUT, root, Affine(places[rank])), Operand(IN, rank, Affine(0)), sizes[rank])
    return _framed(kind, rank, size, own, None)._replace(algorithm="zero_copy_shared")


def gather(
    rank: int, size: int, nbytes: BlockSizes, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """Every rank stores its block into the root's output: 2(p-1)m bytes in place."""
    kind = "gather"
    sizes, places = blocks_of(nbytes, size)
    in_place = places[root] if rank == root else None
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), in_place)
    own = _copies(Operand(OUT, root, Affine(places[rank])), Operand(IN, rank, Affine(0)), sizes[rank])
    return _with_root(kind, rank, size, root, own, in_place)


def scatter(
    rank: int, size: int, nbytes: BlockSizes, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """Every rank copies its block from the root's input: 2(p-1)m bytes in place."""
    kind = "scatter"
    sizes, places = blocks_of(nbytes, size)
    in_place = -places[root] if rank == root else None
    if size == 1 or not any(sizes):
        return alone(kind, rank, size, sum(sizes), in_place)
    own = _copies(Operand(OUT, rank, Affine(0)), Operand(IN, root, Affine(places[rank])), sizes[rank])
    return _with_root(kind, rank, size, root, own, in_place)


def all_to_all(
    rank: int, size: int, nbytes: int | Sequence[Sequence[int]], itemsize: int = 1, limits: Limits = DEFAULT_LIMITS
) -> Plan:
    """Every rank copies its blocks from all inputs: 2p^2 m bytes. Not in place: blocks would change while read."""
    kind = "all_to_all"
    matrix = [[nbytes] * size] * size if isinstance(nbytes, int) else nbytes
    sizes = [row[rank] for row in matrix]
    if not any(map(any, matrix)):
        return alone(kind, rank, size, 0, None)
    places = blocks_of(sizes, size)[1]
    work = [
        Copy(Operand(OUT, rank, Affine(places[r])), Operand(IN, r, Affine(sum(matrix[r][:rank]))), sizes[r])
        for r in _order(rank, size, max(sizes))
        if sizes[r]
    ]
    return _framed(kind, rank, size, work, None)


def entered(plan: Plan) -> Plan:
    """The plan without its entry round, for ranks that have just completed an exchange with all others."""
    if not plan.zero_copy:
        return plan
    steps = [s for loop in plan.loops for s in loop.steps if not (isinstance(s, (Publish, Await)) and s.round == ENTRY)]
    moved = [s if isinstance(s, (Copy, Reduce)) else s._replace(round=ENTRY) for s in steps]
    return plan._replace(rounds=1, loops=(Loop(1, tuple(moved)),))


def _by_slices(kind: str, rank: int, size: int, nbytes: int, outputs: tuple[int, ...], in_place: int | None) -> Plan:
    """Every rank folds its slice of all inputs and stores it into the output of each of the ranks ``outputs``."""
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    lo, hi = even(nbytes, size)[rank : rank + 2]
    at = Affine(lo)
    dst, *also = (Operand(OUT, r, at) for r in outputs)
    sources = tuple(Operand(IN, r, at) for r in range(size))
    return _framed(kind, rank, size, [Reduce(dst, tuple(also), sources, hi - lo)] if lo < hi else [], in_place)


def _order(rank: int, size: int, nbytes: int) -> tuple[int, ...]:
    """The ranks, in the order in which this one copies their blocks."""
    others = peers(rank, size)
    return (rank, *others) if nbytes < OWN_LAST_NBYTES else (*others, rank)


def _copies(dst: Operand, src: Operand, nbytes: int) -> list[Step]:
    return [Copy(dst, src, nbytes)] if nbytes else []


def _framed(kind: str, rank: int, size: int, work: Sequence[Step], in_place: int | None) -> Plan:
    """Work on the buffers of all ranks, which no caller touches from entry to exit."""
    return _plan(kind, rank, size, [Publish(ENTRY), Await(ENTRY), *work, Publish(EXIT), Await(EXIT)], in_place)


def _with_root(kind: str, rank: int, size: int, root: int, work: Sequence[Step], in_place: int | None = 0) -> Plan:
    """Work on the root's buffers: the root awaits the exit of all ranks, the others await the entry of the root."""
    if rank == root:
        return _plan(kind, rank, size, [Publish(ENTRY), *work, Await(EXIT)], in_place)
    return _plan(kind, rank, size, [Await(ENTRY, (root,)), *work, Publish(EXIT)], in_place)


def _plan(kind: str, rank: int, size: int, steps: Sequence[Step], in_place: int | None) -> Plan:
    # No data goes into slots, but every round is claimed before it is published: the claim keeps a rank from publishing
    # over a round that a slow peer has not read yet.
    return Plan(kind, "zero_copy", rank, size, 2, 0, (Loop(1, (Claim(EXIT), *steps)),), in_place, zero_copy=True)
