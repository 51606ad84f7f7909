"""Two shots: each owner folds one slice, then the collecting ranks copy all folded slices (reduce-scatter, all-gather).

The vector goes chunk by chunk. Chunk k takes two rounds: in its *contribution* round C(k) every rank stages the slices
that others own; in its *result* round R(k) every owner stages its folded slice. Iteration k of the pipeline stages
C(k+1), folds chunk k and collects chunk k-1, so the rounds go C0 C1 R0 C2 R1 C3 R2 ... and only the first and the last
wait are exposed. A rank never stages the slice that it owns.

Example: an all-reduce of three ranks in two chunks, all steps of every rank. ``1b`` is the second slice of chunk 1;
rank 0 owns slices a, rank 1 slices b, rank 2 slices c.

===========  ===========  ===========
rank 0       rank 1       rank 2
===========  ===========  ===========
claim R0     claim R0     claim R0
stage 0b 0c  stage 0a 0c  stage 0a 0b
publish C0   publish C0   publish C0
stage 1b 1c  stage 1a 1c  stage 1a 1b
publish C1   publish C1   publish C1
await C0     await C0     await C0
fold 0a      fold 0b      fold 0c
publish R0   publish R0   publish R0
release C0   release C0   release C0
claim R1     claim R1     claim R1
await C1     await C1     await C1
fold 1a      fold 1b      fold 1c
publish R1   publish R1   publish R1
await R0     await R0     await R0
copy 0b 0c   copy 0c 0a   copy 0a 0b
await R1     await R1     await R1
copy 1b 1c   copy 1c 1a   copy 1a 1b
===========  ===========  ===========

*stage* copies from the input to the rank's slot of the round that is published next; *fold* loads the own slice from
the input and from the C slots of the other ranks, and stores it to the output and to the rank's R slot; *copy* loads a
result from its owner's R slot. The first claim covers all rounds before R0, too. Nothing is released after C0: the end
of the plan releases the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from .limits import LINE, Limits
from .pipeline import alone, await_ranks, even
from .steps import IN, OUT, SLOT, ZERO, Affine, Await, Claim, Copy, Loop, Operand, Plan, Publish, Reduce, Release, Step


def two_shot(
    kind: str,
    algorithm: str,
    rank: int,
    size: int,
    nbytes: int,
    limits: Limits,
    owners: tuple[int, ...],
    collectors: tuple[int, ...],
) -> Plan:
    """The plan of one rank. ``owners`` fold slices (all ranks, or all but one), ``collectors`` need the result."""
    in_place = 0 if rank in collectors else None
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    part = Slices(rank, size, nbytes, limits, owners, rank in collectors)
    return Plan(kind, algorithm, rank, size, 2 * part.chunks, part.used_nbytes, part.loops(), in_place)


def slice_capacity(staged_slices: int, limits: Limits) -> int:
    """Most bytes of a slice, in whole lines, if a rank stages so many slices in a round; 0 if no line fits."""
    return limits.capacity // max(staged_slices, 1) // LINE * LINE


class Slices:
    """How the bytes are cut, and the steps of one rank in one iteration."""

    def __init__(
        self, rank: int, size: int, nbytes: int, limits: Limits, owners: tuple[int, ...], collects: bool
    ) -> None:
        self.rank, self.size, self.owners, self.collects = rank, size, owners, collects
        self.place = owners.index(rank) if rank in owners else None
        n = len(owners)
        # An owner stages n - 1 slices in a contribution round; a rank that owns none stages all n.
        staged_slices = n - 1 if n == size else n
        slice_nbytes = slice_capacity(staged_slices, limits)
        if not slice_nbytes:
            raise ValueError(f"{limits.capacity} bytes per round are too few for slices for {size} ranks")
        lines = -(-nbytes // LINE)
        chunks = -(-lines * LINE // (n * slice_nbytes))
        slice_nbytes = -(-lines // (n * chunks)) * LINE  # the same number of chunks, but equal ones
        self.used_nbytes = staged_slices * slice_nbytes
        self.chunk_nbytes = n * slice_nbytes
        self.full = nbytes // self.chunk_nbytes
        tail = nbytes - self.full * self.chunk_nbytes
        self.chunks = self.full + (tail > 0)
        self.full_bounds = [j * slice_nbytes for j in range(n + 1)]
        self.tail_bounds = even(tail, n)

    def loops(self) -> tuple[Loop, ...]:
        loops: list[Loop] = []
        once, k = self.iteration(0), 1
        # Iteration k stages chunk k + 1, folds chunk k and collects chunk k - 1. All three are full chunks for k from 1
        # to full - 2: these iterations are alike but for the number of the chunk, and become one loop. Iteration 0 has
        # nothing to collect and stages two chunks; the iterations from full - 1 on meet the remainder, or have nothing
        # to stage.
        repeats = self.full - 2
        if repeats > 1:
            loops += [Loop(1, tuple(once)), Loop(repeats, tuple(self.iteration(1, step=1)))]
            once, k = [], 1 + repeats
        for later in range(k, self.chunks + 1):
            once += self.iteration(later)
        return (*loops, Loop(1, tuple(once)))

    def iteration(self, k: int, step: int = 0) -> list[Step]:
        steps = [] if k else list(self.produce(0, step))
        if k + 1 < self.chunks:
            steps += self.produce(k + 1, step)
        if k < self.chunks:
            steps += self.fold(k, step)
        then = list(self.collect(k - 1, step)) if k else []
        if k + 1 < self.chunks:
            then.append(Release(Affine(2 * k, 2 * step)))  # C(k) and R(k-1), and all before them
        # One claim for all rounds of the iteration: it covers earlier rounds. Four slots are enough, because R(k)
        # comes 4 rounds after R(k-2), which the others have released when they leave iteration k - 1.
        rounds = [s.round for s in steps if isinstance(s, Publish)]
        return [*(Claim(round) for round in rounds[-1:]), *steps, *then]

    # The rounds of chunk k, in the order C0 C1 R0 C2 R1 C3 R2 ..., and at the end R(k-1) R(k): after C0 there is one C
    # and one R for every iteration. Both are affine in k in the iterations that loop.
    def contribution(self, k: int, step: int) -> Affine:
        """C(k): before it come C0 .. C(k-1) and R0 .. R(k-2), so it is round 2k - 1; C0 is round 0."""
        return Affine(2 * k - 1 if k else 0, 2 * step)

    def result(self, k: int, step: int) -> Affine:
        """R(k): before it come C0 .. C(k+1) and R0 .. R(k-1), so it is round 2k + 2.

        Before that of the last chunk there is one C less, since no chunk follows: it is round 2k + 1.
        """
        return Affine(2 * k + 2 if k < self.chunks - 1 else 2 * k + 1, 2 * step)

    def chunk(self, k: int, step: int) -> tuple[list[int], int, int]:
        """The bounds of its slices, its offset, and the distance to the next chunk."""
        bounds = self.full_bounds if k < self.full else self.tail_bounds
        return bounds, k * self.chunk_nbytes, step * self.chunk_nbytes

    def staged(self, k: int, step: int) -> Iterable[tuple[Operand, Affine, int]]:
        """The bytes that this rank stages: the place in its slot, the place in the vector, and the bytes."""
        bounds, at, stride = self.chunk(k, step)
        round = self.contribution(k, step)
        # All slices but the one that this rank owns, packed: [0, lo) and [hi, end) of the chunk.
        lo, hi = (bounds[self.place], bounds[self.place + 1]) if self.place is not None else (0, 0)
        slot = 0
        for begin, end in ((0, lo), (hi, bounds[-1])):
            if begin < end:
                yield Operand(SLOT, self.rank, Affine(slot), round), Affine(at + begin, stride), end - begin
                slot += end - begin

    def produce(self, k: int, step: int) -> Iterable[Step]:
        copies = [Copy(slot, Operand(IN, self.rank, at), nbytes) for slot, at, nbytes in self.staged(k, step)]
        yield from copies
        if copies:
            yield Publish(self.contribution(k, step))

    def sources(self, k: int, step: int) -> tuple[Operand, ...]:
        """The operands of this rank's slice, by rank."""
        bounds, at, stride = self.chunk(k, step)
        assert self.place is not None
        lo = bounds[self.place]
        # This slice lies in a peer's slot after those of earlier owners, except the one that the peer owns.
        before = Operand(SLOT, 0, Affine(lo), self.contribution(k, step))
        place_of = {owner: j for j, owner in enumerate(self.owners[: self.place])}
        return tuple(
            Operand(IN, r, Affine(at + lo, stride))
            if r == self.rank
            else before._replace(rank=r)
            if (j := place_of.get(r)) is None
            else before._replace(rank=r, offset=Affine(lo - (bounds[j + 1] - bounds[j])))
            for r in range(self.size)
        )

    def fold(self, k: int, step: int) -> Iterable[Step]:
        if self.place is None:
            return
        bounds, at, stride = self.chunk(k, step)
        lo, hi = bounds[self.place], bounds[self.place + 1]
        if lo == hi:
            return
        sources = self.sources(k, step)
        yield Await(self.contribution(k, step))
        staged = Operand(SLOT, self.rank, ZERO, self.result(k, step))
        if self.collects:
            yield Reduce(Operand(OUT, self.rank, Affine(at + lo, stride)), (staged,), sources, hi - lo)
        else:
            yield Reduce(staged, (), sources, hi - lo)
        yield Publish(staged.round)

    def collect(self, k: int, step: int) -> Iterable[Step]:
        if not self.collects:
            return
        bounds, at, stride = self.chunk(k, step)
        round = self.result(k, step)
        # Owners from the next one on, so that no two readers begin with the same one.
        n, start = len(self.owners), (self.place + 1 if self.place is not None else 0)
        order = [j % n for j in range(start, start + n)]
        order = [j for j in order if j != self.place and bounds[j] < bounds[j + 1]]
        yield from await_ranks(round, [self.owners[j] for j in order], self.size)
        for j in order:
            yield Copy(
                Operand(OUT, self.rank, Affine(at + bounds[j], stride)),
                Operand(SLOT, self.owners[j], ZERO, round),
                bounds[j + 1] - bounds[j],
            )
