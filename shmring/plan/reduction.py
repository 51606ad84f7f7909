"""Collectives that compute, on private buffers: everything another rank needs crosses an outbox.

Every element is folded in rank order 0..p-1 by a single Reduce, whichever builder makes the plan, so that results
have the same bits for all algorithms and sizes. This rules out whatever moves partial results (trees, rings, recursive
halving): a partial result in float16 is rounded once more, and in float32 it is only right if it is a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable

from .limits import DEFAULT_LIMITS, LINE, Limits
from .pipeline import (
    Speech,
    Turn,
    alone,
    awaiting,
    deaf,
    even,
    joined,
    packing,
    pipelined,
    rounds_of,
    silent,
    stages,
    up,
)
from .steps import IN, OUT, SLOT, ZERO, Affine, Await, Claim, Copy, Loop, Operand, Plan, Publish, Reduce, Release, Step


def all_reduce_one_shot(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank stages all it has and folds everything itself: one sync, p(p+3)s bytes. For small messages."""
    kind = "all_reduce"
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, folds=True)
    cut = stages([nbytes], limits.capacity)
    say, hear = _stage_whole(rank), _fold(rank, size, range(size))
    return Plan(kind, "one_shot", rank, size, rounds_of(cut), pipelined(cut, say, hear))


def all_reduce_two_shot(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank folds one slice for all: two syncs, (5p-2)s bytes, the least there can be with private buffers."""
    return _two_shot("all_reduce", rank, size, nbytes, limits, tuple(range(size)), tuple(range(size)))


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
        loops = (deaf(rounds_of(cut)), *pipelined(cut, _stage_whole(rank), silent))
    return Plan(kind, "flat", rank, size, rounds_of(cut), loops, in_place)


def reduce_sliced(
    rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS, root: int = 0
) -> Plan:
    """The other ranks fold a slice each and the root collects: (3p+1)s bytes, of which no rank touches more than 4s.

    The root stages its operand like everyone, because it has its place in the order of summation; folding it in at the
    end, which would save those 2s, is right for the last rank only, and there only where partial results are exact.
    """
    owners = tuple(r for r in range(size) if r != root)
    return _two_shot("reduce", rank, size, nbytes, limits, owners, (root,))


def reduce_scatter(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank stages the other ranks' blocks and folds its own: one sync, (3p-1)s bytes (s = p * ``nbytes``).

    ``nbytes`` is the size of one block, i.e. of the output.
    """
    kind, in_place = "reduce_scatter", -rank * nbytes
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    alignment = packing(size - 1, limits.capacity, itemsize)
    cut = stages([nbytes], limits.capacity, lambda n: (size - 1) * n[0], alignment)

    def say(turn: Turn) -> Iterable[Step]:
        stride = up(turn.stage.pieces[0], alignment)
        yield Claim(turn.round)
        # The own block stays where it is, so the later ones move up by one place.
        yield from joined(
            Copy(
                Operand(SLOT, rank, Affine((j - (j > rank)) * stride), turn.round),
                Operand(IN, rank, turn.at(0, j * nbytes)),
                turn.stage.pieces[0],
            )
            for j in range(size)
            if j != rank
        )
        yield Publish(turn.round)

    def hear(turn: Turn) -> Iterable[Step]:
        stride = up(turn.stage.pieces[0], alignment)
        yield Await(turn.round)
        yield Reduce(
            Operand(OUT, rank, turn.at(0, 0)),
            (),
            tuple(
                Operand(IN, rank, turn.at(0, rank * nbytes))
                if r == rank
                else Operand(SLOT, r, Affine((rank - (rank > r)) * stride), turn.round)
                for r in range(size)
            ),
            turn.stage.pieces[0],
        )
        yield Release(turn.round)

    return Plan(kind, "staged", rank, size, rounds_of(cut), pipelined(cut, say, hear), in_place)


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
        loops = (deaf(rounds_of(cut)), *pipelined(cut, say, silent))
    return Plan(kind, "staged", rank, size, rounds_of(cut), loops)


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


def _two_shot(
    kind: str, rank: int, size: int, nbytes: int, limits: Limits, owners: tuple[int, ...], audience: tuple[int, ...]
) -> Plan:
    """Chunk by chunk, each owner folds its slice of the chunk, and the audience collects the slices.

    Chunk k takes two rounds: in its contribution round C(k) every rank says the slices that others own, in its result
    round R(k) every owner says its folded slice. Iteration k of the pipeline says C(k+1), folds chunk k, and
    collects chunk k-1, so the rounds go C0 C1 R0 C2 R1 C3 R2 ...
    """
    in_place = 0 if rank in audience else None
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    return _TwoShot(kind, rank, size, nbytes, limits, owners, audience).plan(in_place)


class _TwoShot:
    """One rank's part in it: how the bytes are cut, and the steps of one iteration."""

    def __init__(
        self,
        kind: str,
        rank: int,
        size: int,
        nbytes: int,
        limits: Limits,
        owners: tuple[int, ...],
        audience: tuple[int, ...],
    ) -> None:
        self.kind, self.rank, self.size, self.owners = kind, rank, size, owners
        self.place = owners.index(rank) if rank in owners else None
        self.listens = rank in audience
        n = len(owners)
        # An owner says n - 1 slices in a contribution round; a rank that owns nothing says all n.
        self.slice_nbytes = slice_capacity(n - 1 if n == size else n, limits)
        if not self.slice_nbytes:
            raise ValueError(f"{limits.capacity} bytes per round are too few for slices for {size} ranks")
        lines = -(-nbytes // LINE)
        chunks = -(-lines * LINE // (n * self.slice_nbytes))
        self.slice_nbytes = -(-lines // (n * chunks)) * LINE  # as many chunks, but equal ones
        self.chunk_nbytes = n * self.slice_nbytes
        self.full = nbytes // self.chunk_nbytes
        tail = nbytes - self.full * self.chunk_nbytes
        self.chunks = self.full + (tail > 0)
        self.full_bounds = [j * self.slice_nbytes for j in range(n + 1)]
        self.tail_bounds = even(tail, n)

    def plan(self, in_place: int | None) -> Plan:
        once = [*self.iteration(-1), *self.iteration(0)]
        loops: list[Loop] = []
        k = 1
        repeats = self.full - 2  # iterations 1 .. full - 2 say, fold and collect full chunks
        if repeats > 1:
            loops += [Loop(1, tuple(once)), Loop(repeats, tuple(self.iteration(1, step=1)))]
            once, k = [], k + repeats
        for later in range(k, self.chunks + 1):
            once += self.iteration(later)
        loops.append(Loop(1, tuple(once)))
        return Plan(self.kind, self.algorithm, self.rank, self.size, 2 * self.chunks, tuple(loops), in_place)

    @property
    def algorithm(self) -> str:
        return "two_shot" if len(self.owners) == self.size else "sliced"

    # Rounds of chunk k. Both are affine in k where loops need them: from k = 1, and before the last chunk.
    def contribution(self, k: int, step: int = 0) -> Affine:
        return Affine(2 * k - 1 if k else 0, 2 * step)

    def result(self, k: int, step: int = 0) -> Affine:
        return Affine(2 * k + 2 if k < self.chunks - 1 else 2 * k + 1, 2 * step)

    def iteration(self, k: int, step: int = 0) -> Iterable[Step]:
        says, folds, collects = k + 1 < self.chunks, 0 <= k < self.chunks, k >= 1
        # One claim for all that this iteration writes: the last round covers those before it. Four slots are enough:
        # R(k) lies 4 rounds after R(k-2), which the others have released when they leave iteration k - 1.
        if self.place is not None and k < self.chunks and k:
            yield Claim(self.result(max(k, 0), step))
        elif self.place is None and says:
            yield Claim(self.contribution(k + 1, step))
        if says:
            yield from self.say(k + 1, step)
        if folds:
            yield from self.fold(k, step)
        if collects:
            yield from self.collect(k - 1, step)
        if folds and says:
            yield Release(Affine(2 * k, 2 * step))  # C(k) and R(k-1), and all before them

    def chunk(self, k: int, step: int) -> tuple[list[int], int, int]:
        """Its slices' bounds, where it begins, and how far the next one is."""
        bounds = self.full_bounds if k < self.full else self.tail_bounds
        return bounds, k * self.chunk_nbytes, step * self.chunk_nbytes

    def say(self, k: int, step: int) -> Iterable[Step]:
        bounds, at, stride = self.chunk(k, step)
        round = self.contribution(k, step)
        # All slices but the own one, packed: [0, lo) and [hi, end) of the chunk.
        lo, hi = (bounds[self.place], bounds[self.place + 1]) if self.place is not None else (0, 0)
        slot, rank = 0, self.rank
        for begin, end in ((0, lo), (hi, bounds[-1])):
            if begin < end:
                yield Copy(
                    Operand(SLOT, rank, Affine(slot), round),
                    Operand(IN, rank, Affine(at + begin, stride)),
                    end - begin,
                )
                slot += end - begin
        if slot:
            yield Publish(round)

    def fold(self, k: int, step: int) -> Iterable[Step]:
        if self.place is None:
            return
        bounds, at, stride = self.chunk(k, step)
        lo, hi = bounds[self.place], bounds[self.place + 1]
        if lo == hi:
            return
        said, own = self.contribution(k, step), Affine(at + lo, stride)
        # Where our slice lies in a peer's slot: after the slices of the owners before us, without the peer's own.
        before = Operand(SLOT, 0, Affine(lo), said)
        place_of = {owner: j for j, owner in enumerate(self.owners[: self.place])}
        sources = tuple(
            Operand(IN, r, own)
            if r == self.rank
            else before._replace(rank=r)
            if (j := place_of.get(r)) is None
            else Operand(SLOT, r, Affine(lo - (bounds[j + 1] - bounds[j])), said)
            for r in range(self.size)
        )
        yield Await(said)
        staged = Operand(SLOT, self.rank, ZERO, self.result(k, step))
        if self.listens:
            yield Reduce(Operand(OUT, self.rank, own), (staged,), sources, hi - lo)
        else:
            yield Reduce(staged, (), sources, hi - lo)
        yield Publish(staged.round)

    def collect(self, k: int, step: int) -> Iterable[Step]:
        if not self.listens:
            return
        bounds, at, stride = self.chunk(k, step)
        round = self.result(k, step)
        # Owners from the next one on, so that no two readers start at the same one.
        n, start = len(self.owners), (self.place + 1 if self.place is not None else 0)
        order = [j % n for j in range(start, start + n)]
        order = [j for j in order if j != self.place and bounds[j] < bounds[j + 1]]
        yield from awaiting(round, [self.owners[j] for j in order], self.size)
        for j in order:
            yield Copy(
                Operand(OUT, self.rank, Affine(at + bounds[j], stride)),
                Operand(SLOT, self.owners[j], ZERO, round),
                bounds[j + 1] - bounds[j],
            )


def slice_capacity(said: int, limits: Limits) -> int:
    """Most bytes of a slice, in whole lines, if a rank says ``said`` slices in a round; 0 if not even a line fits."""
    return limits.capacity // max(said, 1) // LINE * LINE
