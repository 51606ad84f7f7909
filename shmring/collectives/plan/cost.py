"""The cost of a plan, counted from its steps.

A *touch* is one byte loaded or stored once. Slots and buffers count alike; the effect of caches is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .steps import ALL, IN, OUT, SLOT, Affine, Await, AwaitRelease, Claim, Copy, Operand, Plan, Publish, Reduce, Release


class Cost(NamedTuple):
    """The cost of a plan for one rank, or for all ranks together.

    Attributes
    ----------
    read_nbytes, written_nbytes : int
        Bytes loaded and stored.
    staged_nbytes : int
        Bytes stored to slots.
    crossed_nbytes : int
        Bytes loaded from or stored to memory of another domain.
    awaits, claims, publishes : int
        Synchronisations. Claims seldom wait.
    """

    read_nbytes: int = 0
    written_nbytes: int = 0
    staged_nbytes: int = 0
    crossed_nbytes: int = 0
    awaits: int = 0
    claims: int = 0
    publishes: int = 0

    @property
    def touched_nbytes(self) -> int:
        """Bytes loaded or stored."""
        return self.read_nbytes + self.written_nbytes


def cost(plan: Plan, *, in_place: bool = False, domains: Sequence[int] | None = None) -> Cost:
    """The cost of one rank's plan.

    ``in_place``: the caller works in place, so copies from IN to the same address in OUT cost nothing. ``domains``: the
    memory domain (NUMA node, socket, cache) of each rank, of its buffers and of its outbox.
    """
    reads = writes = staged = crossed = awaits = claims = publishes = 0
    here = domains[plan.rank] if domains else 0
    for loop in plan.loops:
        for s in loop.steps:
            if isinstance(s, (Copy, Reduce)):
                if in_place and isinstance(s, Copy) and _same(plan, s.dst, s.src):
                    continue
                loads, stores = s.loads, s.stores
                reads += loop.times * sum(n for _, n in loads)
                writes += loop.times * sum(n for _, n in stores)
                staged += loop.times * sum(n for o, n in stores if o.space is SLOT)
                if domains:
                    crossed += loop.times * sum(n for o, n in (*loads, *stores) if domains[o.rank] != here)
            elif isinstance(s, (Await, AwaitRelease)):
                awaits += loop.times
            elif isinstance(s, Claim):
                claims += loop.times
            elif isinstance(s, Publish):
                publishes += loop.times
    return Cost(reads, writes, staged, crossed, awaits, claims, publishes)


def dependent_syncs(plans: Sequence[Plan]) -> int:
    """The longest chain of awaits that depend on one another through counters: latencies that nothing can hide.

    Claims are left out: the slots of a collective of few rounds have long been free.
    """
    depth = [0] * len(plans)
    # Per rank: (round, depth), ascending.
    published: list[list[tuple[int, int]]] = [[] for _ in plans]
    released: list[list[tuple[int, int]]] = [[] for _ in plans]
    kinds = (Await, AwaitRelease, Publish, Release)
    scripts = [
        ((s, i) for loop in p.loops for i in range(loop.times) for s in loop.steps if isinstance(s, kinds))
        for p in plans
    ]
    current = [next(script, None) for script in scripts]
    while any(current):
        advances = False
        for rank, item in enumerate(current):
            if item is None:
                continue
            step, i = item
            round = step.round.at(i)
            if isinstance(step, (Publish, Release)):
                (published if isinstance(step, Publish) else released)[rank].append((round, depth[rank]))
            else:
                awaited = step.ranks if isinstance(step, Await) else ALL
                ranks = [r for r in range(len(plans)) if r != rank] if awaited is ALL else awaited
                advanced = published if isinstance(step, Await) else released
                depths = [next((d for at, d in advanced[r] if at >= round), None) for r in ranks]
                if None in depths:
                    continue
                depth[rank] = max(depth[rank], 1 + max(d for d in depths if d is not None))
            current[rank] = next(scripts[rank], None)
            advances = True
        if not advances:
            raise ValueError("the plans deadlock")
    return max(depth)


def _same(plan: Plan, dst: Operand, src: Operand) -> bool:
    """Whether a copy from IN to OUT has the same source and destination when the caller works in place."""
    own = dst.rank == src.rank == plan.rank and dst.space is OUT and src.space is IN
    if not own or plan.in_place is None:
        return False
    return dst.offset == Affine(src.offset.start + plan.in_place, src.offset.step)
