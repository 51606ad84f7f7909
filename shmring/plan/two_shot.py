"""Two shots: each owner folds its slice for everyone, then its audience collects the slices.

The vector goes chunk by chunk. Chunk k takes two rounds: in its *contribution* round C(k) every rank says the slices
that others own; in its *result* round R(k) every owner says its folded slice. Iteration k of the pipeline says C(k+1),
folds chunk k and collects chunk k-1, so the rounds go C0 C1 R0 C2 R1 C3 R2 ... and only the first wait and the last are
exposed. The own slice is never staged.
"""

from __future__ import annotations

from collections.abc import Iterable

from .limits import LINE, Limits
from .pipeline import alone, awaiting, even
from .steps import IN, OUT, SLOT, ZERO, Affine, Await, Claim, Copy, Loop, Operand, Plan, Publish, Reduce, Release, Step


def two_shot(
    kind: str,
    algorithm: str,
    rank: int,
    size: int,
    nbytes: int,
    limits: Limits,
    owners: tuple[int, ...],
    audience: tuple[int, ...],
) -> Plan:
    """The plan of one rank. ``owners``: who folds slices, all ranks or all but one; ``audience``: who collects them."""
    in_place = 0 if rank in audience else None
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    part = _Part(rank, size, nbytes, limits, owners, rank in audience)
    return Plan(kind, algorithm, rank, size, 2 * part.chunks, part.used_nbytes, part.loops(), in_place)


def slice_capacity(said: int, limits: Limits) -> int:
    """Most bytes of a slice, in whole lines, if a rank says ``said`` slices in a round; 0 if not even a line fits."""
    return limits.capacity // max(said, 1) // LINE * LINE


class _Part:
    """One rank's part: how the bytes are cut, and its steps in one iteration."""

    def __init__(
        self, rank: int, size: int, nbytes: int, limits: Limits, owners: tuple[int, ...], collects: bool
    ) -> None:
        self.rank, self.size, self.owners, self.collects = rank, size, owners, collects
        self.place = owners.index(rank) if rank in owners else None
        n = len(owners)
        # An owner says n - 1 slices in a contribution round; a rank that owns nothing says all n.
        said = n - 1 if n == size else n
        slice_nbytes = slice_capacity(said, limits)
        if not slice_nbytes:
            raise ValueError(f"{limits.capacity} bytes per round are too few for slices for {size} ranks")
        lines = -(-nbytes // LINE)
        chunks = -(-lines * LINE // (n * slice_nbytes))
        slice_nbytes = -(-lines // (n * chunks)) * LINE  # as many chunks, but equal ones
        self.used_nbytes = said * slice_nbytes
        self.chunk_nbytes = n * slice_nbytes
        self.full = nbytes // self.chunk_nbytes
        tail = nbytes - self.full * self.chunk_nbytes
        self.chunks = self.full + (tail > 0)
        self.full_bounds = [j * slice_nbytes for j in range(n + 1)]
        self.tail_bounds = even(tail, n)

    def loops(self) -> tuple[Loop, ...]:
        loops: list[Loop] = []
        once, k = self.iteration(0), 1
        repeats = self.full - 2  # iterations 1 .. full - 2 say, fold and collect full chunks
        if repeats > 1:
            loops += [Loop(1, tuple(once)), Loop(repeats, tuple(self.iteration(1, step=1)))]
            once, k = [], 1 + repeats
        for later in range(k, self.chunks + 1):
            once += self.iteration(later)
        return (*loops, Loop(1, tuple(once)))

    def iteration(self, k: int, step: int = 0) -> list[Step]:
        said = [] if k else list(self.say(0, step))
        if k + 1 < self.chunks:
            said += self.say(k + 1, step)
        if k < self.chunks:
            said += self.fold(k, step)
        heard = list(self.collect(k - 1, step)) if k else []
        if k + 1 < self.chunks:
            heard.append(Release(Affine(2 * k, 2 * step)))  # C(k) and R(k-1), and all before them
        # One claim for all that the iteration says: it covers the rounds before. Four slots are enough, because R(k)
        # lies 4 rounds after R(k-2), which the others have released when they leave iteration k - 1.
        rounds = [s.round for s in said if isinstance(s, Publish)]
        return [*(Claim(round) for round in rounds[-1:]), *said, *heard]

    # The rounds of chunk k. Both are affine in k where loops need them: from k = 1 on, and before the last chunk.
    def contribution(self, k: int, step: int) -> Affine:
        return Affine(2 * k - 1 if k else 0, 2 * step)

    def result(self, k: int, step: int) -> Affine:
        return Affine(2 * k + 2 if k < self.chunks - 1 else 2 * k + 1, 2 * step)

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
        if self.collects:
            yield Reduce(Operand(OUT, self.rank, own), (staged,), sources, hi - lo)
        else:
            yield Reduce(staged, (), sources, hi - lo)
        yield Publish(staged.round)

    def collect(self, k: int, step: int) -> Iterable[Step]:
        if not self.collects:
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
