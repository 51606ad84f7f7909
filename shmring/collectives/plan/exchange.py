"""Exchange: a two-shot all-reduce whose results lie where the contributions lay.

The rank that folds a slice stores the result into the slots that it has just read, in place of the contributions, and
each contributor takes it from its own slot. In `two_shot` the owner stores a result into a slot of its own, whose lines
it must first fetch back from the ranks that have read what was there; here it has just fetched them. With p ranks it
stores p - 1 copies of a result, each loaded by one rank, where `two_shot` stores one that p - 1 ranks load.

Chunk k is one round: published with the contributions, and released by an owner once the results have taken their
place. The last round is empty, since a plan does not release its last one.
"""

from __future__ import annotations

from collections.abc import Iterable

from .limits import DEFAULT_LIMITS, Limits
from .pipeline import alone
from .steps import OUT, Affine, Await, AwaitRelease, Claim, Copy, Operand, Plan, Reduce, Release, Step
from .two_shot import Slices


def all_reduce_exchange(rank: int, size: int, nbytes: int, itemsize: int = 1, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Every rank folds one slice for all and stores it into their slots: two syncs, (6p-4)s bytes."""
    kind, algorithm = "all_reduce", "exchange"
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, folds=True)
    part = _Part(rank, size, nbytes, limits, tuple(range(size)), collects=True)
    return Plan(kind, algorithm, rank, size, part.chunks + 1, part.used_nbytes, part.loops())


class _Part(Slices):
    """The steps of one rank in one iteration: stage chunk k + 1, fold chunk k, collect chunk k - 1."""

    def iteration(self, k: int, step: int = 0) -> list[Step]:
        steps = [] if k else list(self.produce(0, step))
        if k + 1 < self.chunks:
            steps += self.produce(k + 1, step)
        if k < self.chunks:
            steps += self.fold(k, step)
        if k:
            steps += self.collect(k - 1, step)
        if k + 1 < self.chunks:
            return [Claim(Affine(k + 1 if k else 2, step)), *steps]  # at first as two_shot does
        return steps if k else [Claim(Affine(1)), *steps]

    def contribution(self, k: int, step: int) -> Affine:
        return Affine(k, step)

    def fold(self, k: int, step: int) -> Iterable[Step]:
        bounds, at, stride = self.chunk(k, step)
        lo, hi = bounds[self.rank], bounds[self.rank + 1]
        if lo < hi:
            own = Affine(at + lo, stride)
            sources = self.sources(k, step)
            yield Await(self.contribution(k, step))
            # Into a slot first: a kernel stores to a line just after it has loaded it, so the line comes over once.
            first, *others = (source for r, source in enumerate(sources) if r != self.rank)
            yield Reduce(first, (*others, Operand(OUT, self.rank, own)), sources, hi - lo)
        yield Release(self.contribution(k, step))

    def collect(self, k: int, step: int) -> Iterable[Step]:
        copies = list(self.staged(k, step))
        if copies:
            yield AwaitRelease(self.contribution(k, step))
        for slot, offset, nbytes in copies:
            yield Copy(Operand(OUT, self.rank, offset), slot, nbytes)
