"""Collectives that know of domains: within a domain first, between domains as little as can be.

*Chain.* A sum goes through the domains in rank order. In each a rank takes the sum so far from the rank before it, one
domain away, and folds in the operands of its own domain. The sum so far is a prefix of the fold in rank order,
``((x0 + x1) + x2) ...``, and what follows continues it: no element is added in any other order than by a flat plan, and
the bits are the same. That holds for folds of which a prefix can be stored (`carries`): not where the fold has another
form in registers than in memory, as sums of 16-bit floats, nor where its end divides, as averages.

*Spread.* A result goes to every domain once, along a tree of levels, and is copied on within.

Every vector or block is cut so that all ranks of a domain have a part in its links' traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isqrt

from .limits import DEFAULT_COSTS, DEFAULT_LIMITS, LINE, Costs, Limits
from .nest import Nest
from .pipeline import alone
from .relay import FETCHED, FOLDED, SAID, Act, Relay, Role, cut_blocks, cut_vector, relayed
from .steps import Affine, Await, Claim, Loop, Plan, Publish, Step

LEAST_PIECE = 1024  # bytes; smaller ones cost more in steps than shorter rounds gain


def all_reduce(
    rank: int,
    nest: Nest,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    *,
    carries: bool = True,
) -> Plan:
    """A chain, then a spread: 2(q-1)s bytes across links.

    If not ``carries``, each rank folds a slice of all operands, and only the spread knows of domains: ps(1-1/q) and
    (q-1)s.
    """
    kind, size = "all_reduce", nest.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, folds=True)
    stations = nest.runs if carries else (tuple(range(size)),)
    blocks = _slices(nest) if carries else size
    chain, spread = _Chain(stations), _Spread(nest)

    def acts(r: int) -> list[Act]:
        found = []
        for b in range(blocks):
            end = chain.owner(-1, b)
            found += chain.acts(r, b, stages=True, keeps=True)
            found += spread.acts(r, b, end, FOLDED, chain.delay)
        return found

    relay = Relay(acts, blocks + _share(nest, blocks), chain.delay + spread.hops)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, relay, limits, costs, 5))
    return relayed(kind, "nested" if carries else "half_nested", rank, size, relay, cut)


def reduce(
    rank: int,
    nest: Nest,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    root: int = 0,
) -> Plan:
    """A chain, from whose end the root collects: (q-1)s bytes across links, or qs if the root is not in the last."""
    kind, size = "reduce", nest.size
    in_place = 0 if rank == root else None
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    blocks = _slices(nest)
    chain = _Chain(nest.runs)

    def acts(r: int) -> list[Act]:
        found = []
        for b in range(blocks):
            end = chain.owner(-1, b)
            found += chain.acts(r, b, stages=end != root, keeps=end == root)
            if r == root != end:
                found.append(Act(chain.delay + 1, b, FETCHED, ((end, FOLDED),), stages=False, keeps=True))
        return found

    relay = Relay(acts, blocks, chain.delay)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, relay, limits, costs, 4))
    return relayed(kind, "nested", rank, size, relay, cut, in_place)


def reduce_scatter(
    rank: int, nest: Nest, nbytes: int, limits: Limits = DEFAULT_LIMITS, costs: Costs = DEFAULT_COSTS
) -> Plan:
    """A chain for every block, from whose end its rank collects: (q-1)s and (1-1/q)s bytes across links."""
    kind, size = "reduce_scatter", nest.size
    in_place = -rank * nbytes
    if size == 1 or not nbytes:
        return alone(kind, rank, size, size * nbytes, in_place, folds=True)
    chain = _Chain(nest.runs, nest.place_of)

    def acts(r: int) -> list[Act]:
        found = []
        for b in range(size):
            end = chain.owner(-1, b)
            found += chain.acts(r, b, stages=end != b, keeps=end == b)
            if r == b != end:
                found.append(Act(chain.delay + 1, b, FETCHED, ((end, FOLDED),), stages=False, keeps=True))
        return found

    relay = Relay(acts, size, chain.delay)
    cut = cut_blocks(nbytes, [b * nbytes for b in range(size)], [0] * size, _most(nbytes, relay, limits, costs, 3))
    return relayed(kind, "nested", rank, size, relay, cut, in_place)


def all_gather(
    rank: int, nest: Nest, nbytes: int, limits: Limits = DEFAULT_LIMITS, costs: Costs = DEFAULT_COSTS
) -> Plan:
    """A spread of every block: (q-1)pm bytes across links."""
    kind, size = "all_gather", nest.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, rank * nbytes)
    spread = _Spread(nest)

    def acts(r: int) -> list[Act]:
        found = [Act(0, r, SAID, ((r, SAID),), stages=True, keeps=True)]
        for b in range(size):
            found += spread.acts(r, b, b, SAID, 0, nest.place_of[b])
        return found

    relay = Relay(acts, 1 + _fetched(nest), spread.hops)
    places = [b * nbytes for b in range(size)]
    cut = cut_blocks(nbytes, [0] * size, places, _most(nbytes, relay, limits, costs, 4))
    return relayed(kind, "nested", rank, size, relay, cut, rank * nbytes)


def broadcast(
    rank: int,
    nest: Nest,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    root: int = 0,
) -> Plan:
    """A spread in slices, which the ranks of a domain fetch for one another: (q-1)s bytes across links."""
    kind, size = "broadcast", nest.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, 0)
    blocks, spread = _slices(nest), _Spread(nest)

    def acts(r: int) -> list[Act]:
        found = []
        for b in range(blocks):
            if r == root:
                found.append(Act(0, b, SAID, ((r, SAID),), stages=True, keeps=False))
            found += spread.acts(r, b, root, SAID, 0)
        return found

    relay = Relay(acts, blocks, spread.hops)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, relay, limits, costs, 2))
    return relayed(kind, "nested", rank, size, relay, cut)


def barrier(rank: int, nest: Nest) -> Plan:
    """Nothing but waits, up and down a tree: the first rank of every domain hears the others of it, these first ranks hear one another at
    each level, and tell the others.
    """
    steps: list[Step] = []
    heads = tuple(range(nest.size))
    # Of every level the domains' ranks that are still on their way up, and whose first one goes on.
    ways = []
    for level in (*nest.levels, (0,) * nest.size):
        groups = [tuple(r for r in heads if level[r] == number) for number in dict.fromkeys(level[r] for r in heads)]
        ways.append(next((group for group in groups if rank in group), ()))
        heads = tuple(group[0] for group in groups)
    depth = len(ways)
    for k, group in enumerate(ways):
        if group and rank == group[0] and len(group) > 1:
            steps.append(Await(Affine(k), group[1:]))
        elif group and rank != group[0]:
            steps += [Claim(Affine(k)), Publish(Affine(k)), Await(Affine(2 * depth - 1 - k), group[:1])]
    for k, group in reversed(list(enumerate(ways))):
        if group and rank == group[0] and len(group) > 1:
            round = Affine(2 * depth - 1 - k)
            steps += [Claim(round), Publish(round)]
    return Plan("barrier", "nested", rank, nest.size, 2 * depth, 0, (Loop(1, tuple(steps)),))


class _Chain:
    """A fold that goes from station to station, each some consecutive ranks; block b is folded by one rank of each."""

    def __init__(self, stations: tuple[tuple[int, ...], ...], place_of: tuple[int, ...] | None = None) -> None:
        self.stations, self.place_of = stations, place_of
        self.delay = len(stations)

    def owner(self, station: int, block: int) -> int:
        ranks = self.stations[station]
        return ranks[(block if self.place_of is None else self.place_of[block]) % len(ranks)]

    def acts(self, r: int, block: int, *, stages: bool, keeps: bool) -> Iterable[Act]:
        """Of rank ``r``; ``stages`` and ``keeps``: what the last station's owner does with the result."""
        at = next(k for k, ranks in enumerate(self.stations) if r in ranks)
        owner, is_last = self.owner(at, block), at == self.delay - 1
        if r != owner:
            yield Act(at, block, SAID, ((r, SAID),), stages=True, keeps=False)
            return
        before = ((self.owner(at - 1, block), FOLDED),) if at else ()
        sources = (*before, *((other, SAID) for other in self.stations[at]))
        yield Act(at + 1, block, FOLDED, sources, stages or not is_last, keeps and is_last, closes=is_last)


class _Spread:
    """A result on its way from one rank to all, through every domain once."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.hops_from = [nest.hops(d) for d in range(len(nest.domains))]
        self.hops = max(hop.hops for hops in self.hops_from for hop in hops)

    def acts(
        self, r: int, block: int, source: int, role: Role, delay: int, place: int | None = None
    ) -> Iterable[Act]:
        """Of rank ``r``, for what ``source`` says with this delay; of all others ``place`` says which rank fetches."""
        if r == source:
            return
        start, here = self.nest.domain_of[source], self.nest.domain_of[r]
        hops = self.hops_from[start]

        def head(domain: int) -> int:
            ranks = self.nest.domains[domain]
            return source if domain == start else ranks[(block if place is None else place) % len(ranks)]

        def said(domain: int) -> tuple[tuple[int, Role], ...]:
            return ((head(domain), role if domain == start else FETCHED),)

        if r != head(here):
            yield Act(delay + hops[here].hops + 1, block, FETCHED, said(here), stages=False, keeps=True)
            return
        goes_on = len(self.nest.domains[here]) > 1 or any(
            hop.parent == here for domain, hop in enumerate(hops) if domain != here
        )
        yield Act(delay + hops[here].hops, block, FETCHED, said(hops[here].parent), stages=goes_on, keeps=True)


def _slices(nest: Nest) -> int:
    """Into how many slices a chunk is cut: one for every rank of the largest domain."""
    return max(map(len, nest.domains))


def _share(nest: Nest, blocks: int) -> int:
    """How many of a chunk's slices a rank of the smallest domain fetches."""
    return -(-blocks // min(map(len, nest.domains)))


def _fetched(nest: Nest) -> int:
    """How many ranks' blocks a rank fetches for its domain at most."""
    return max(
        max(Counter(nest.place_of[b] % len(ranks) for b in range(nest.size) if b not in ranks).values(), default=0)
        for ranks in map(frozenset, nest.domains)
    )


def _most(block_nbytes: int, relay: Relay, limits: Limits, costs: Costs, touches: int) -> int:
    """The bytes of a piece: at most what slots hold, and less where a shorter line of chunks would not be worth it.

    ``touches``: how often a rank touches a byte, about. With c chunks and d rounds of delay it takes
    (c + d)(touches * s / c / B + L), which is least at c² = d * touches * s / (B * L).
    """
    fits = limits.capacity // relay.staged // LINE * LINE
    if not fits:
        raise ValueError(f"{limits.capacity} bytes per round are too few for {relay.staged} pieces")
    seconds = touches * block_nbytes * relay.staged / costs.bytes_per_second
    chunks = max(isqrt(int(relay.delay * seconds / max(costs.latency, 1e-9))), 1)
    return max(min(fits, max(-(-block_nbytes // chunks // LINE) * LINE, LEAST_PIECE)), LINE)


def fits(kind: str, nest: Nest, limits: Limits) -> bool:
    """Whether a line of every piece that a rank says in a round fits a slot."""
    p, slices = nest.size, _slices(nest)
    if kind == "barrier":
        return 2 * len(nest.levels) + 2 <= limits.nslots
    staged = {
        "all_reduce": p + _share(nest, p),
        "reduce": slices,
        "reduce_scatter": p,
        "all_gather": 1 + _fetched(nest),
        "broadcast": slices,
    }
    return staged[kind] * LINE <= limits.capacity
