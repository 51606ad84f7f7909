"""Collectives that know of domains: within a domain first, between domains as little as can be.

*Chain.* A sum goes through the domains in rank order. In each a rank takes the sum so far from the rank before it, one
domain away, and folds in the operands of its own domain. The sum so far is a prefix of the fold in rank order,
``((x0 + x1) + x2) ...``, and what follows continues it: no element is added in any other order than by a flat plan, and
the bits are the same. A prefix lies in slots as the fold has it in registers, float32 where 16-bit floats are summed,
and only the last domain rounds, or divides an average. So it may be ``wide`` times as large as what is summed.

*Spread.* A result goes to every domain once, along a tree of levels, and is copied on within.

Every vector or block is cut so that all ranks of a domain have a part in its links' traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from math import isqrt

from .hierarchy import Hierarchy
from .hops import FETCHED, FOLDED, SAID, Act, Relay, Role, cut_blocks, cut_vector, relayed
from .limits import DEFAULT_COSTS, DEFAULT_LIMITS, LINE, Costs, Limits
from .pipeline import alone, awaiting
from .steps import Affine, Claim, Loop, Plan, Publish, Step

LEAST_PIECE = 1024  # bytes; smaller ones cost more in steps than shorter rounds gain


def all_reduce(
    rank: int,
    hierarchy: Hierarchy,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    *,
    wide: int = 1,
) -> Plan:
    """A chain, then a spread: (q-1)s bytes across links each, ``wide`` times that in the chain."""
    kind, size = "all_reduce", hierarchy.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, folds=True)
    blocks = _slices(hierarchy)
    chain = _Chain(hierarchy.runs, blocks, wide)
    ends = [chain.owner(-1, b) for b in range(blocks)]
    spread = _Spread(hierarchy, hierarchy.domain_of[ends[0]])
    acts: list[Act] = []
    for b, end in enumerate(ends):
        acts += chain.acts(rank, b, stages=True, keeps=True)
        acts += spread.acts(rank, b, end, FOLDED, chain.delay)

    def place(r: int, block: int, role: Role) -> int:
        if role is FETCHED:
            return chain.places + block // len(hierarchy.domains[hierarchy.domain_of[r]])
        return chain.place(r, block, role)

    relay = Relay(acts, place, chain.places + _share(hierarchy, blocks), chain.delay + spread.hops, wide)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, relay, limits, costs, 5))
    return relayed(kind, "hierarchical", rank, size, relay, cut)


def reduce(
    rank: int,
    hierarchy: Hierarchy,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    root: int = 0,
    *,
    wide: int = 1,
) -> Plan:
    """A chain, from whose end the root collects: ``wide`` times (q-1)s bytes across links, and s if the root is not in
    the last domain.
    """
    kind, size = "reduce", hierarchy.size
    in_place = 0 if rank == root else None
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    blocks = _slices(hierarchy)
    chain = _Chain(hierarchy.runs, blocks, wide)
    acts: list[Act] = []
    for b in range(blocks):
        acts += chain.to(root, rank, b)
    relay = Relay(acts, chain.place, chain.places, chain.delay, wide)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, relay, limits, costs, 4))
    return relayed(kind, "hierarchical", rank, size, relay, cut, in_place)


def reduce_scatter(
    rank: int,
    hierarchy: Hierarchy,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    *,
    wide: int = 1,
) -> Plan:
    """A chain for every block, from whose end its rank collects: across links ``wide`` times (q-1)s, and (1-1/q)s."""
    kind, size = "reduce_scatter", hierarchy.size
    in_place = -rank * nbytes
    if size == 1 or not nbytes:
        return alone(kind, rank, size, size * nbytes, in_place, folds=True)
    chain = _Chain(hierarchy.runs, size, wide, hierarchy.place_of)
    acts: list[Act] = []
    for b in range(size):
        acts += chain.to(b, rank, b)
    relay = Relay(acts, chain.place, chain.places, chain.delay, wide)
    cut = cut_blocks(nbytes, [b * nbytes for b in range(size)], [0] * size, _most(nbytes, relay, limits, costs, 3))
    return relayed(kind, "hierarchical", rank, size, relay, cut, in_place)


def all_gather(
    rank: int, hierarchy: Hierarchy, nbytes: int, limits: Limits = DEFAULT_LIMITS, costs: Costs = DEFAULT_COSTS
) -> Plan:
    """A spread of every block: (q-1)pm bytes across links."""
    kind, size = "all_gather", hierarchy.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, rank * nbytes)
    acts = [Act(0, rank, SAID, ((rank, SAID),), stages=True, keeps=True)]
    spreads = [_Spread(hierarchy, start) for start in range(len(hierarchy.domains))]
    for spread, ranks in zip(spreads, hierarchy.domains, strict=True):
        for b in ranks:
            acts += spread.acts(rank, b, b, SAID, 0, hierarchy.place_of[b])
    fetched = _fetched(hierarchy)

    def place(r: int, block: int, role: Role) -> int:
        return 1 + fetched[hierarchy.domain_of[r]][block] if role is FETCHED else 0

    relay = Relay(acts, place, 1 + _most_fetched(fetched), max(spread.hops for spread in spreads))
    places = [b * nbytes for b in range(size)]
    cut = cut_blocks(nbytes, [0] * size, places, _most(nbytes, relay, limits, costs, 4))
    return relayed(kind, "hierarchical", rank, size, relay, cut, rank * nbytes)


def broadcast(
    rank: int,
    hierarchy: Hierarchy,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    root: int = 0,
) -> Plan:
    """A spread in slices, which the ranks of a domain fetch for one another: (q-1)s bytes across links."""
    kind, size = "broadcast", hierarchy.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, 0)
    blocks, spread = _slices(hierarchy), _Spread(hierarchy, hierarchy.domain_of[root])
    acts: list[Act] = []
    for b in range(blocks):
        if rank == root:
            acts.append(Act(0, b, SAID, ((rank, SAID),), stages=True, keeps=False))
        acts += spread.acts(rank, b, root, SAID, 0)
    relay = Relay(acts, _as_numbered, blocks, spread.hops)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, relay, limits, costs, 2))
    return relayed(kind, "hierarchical", rank, size, relay, cut)


def barrier(rank: int, hierarchy: Hierarchy) -> Plan:
    """Up and down a tree, without data: the first rank of every domain hears the others of it, the first of these
    domains' first ranks those, and so on; and back. Two rounds, whatever the depth: everyone says one thing each way.
    """
    heard: list[tuple[int, ...]] = []
    parent, heads = None, tuple(range(hierarchy.size))
    for level in (*hierarchy.levels, (0,) * hierarchy.size):
        mine = tuple(r for r in heads if level[r] == level[rank])
        if rank != mine[0]:
            parent = mine[0]
            break
        heard.append(mine[1:])
        firsts: dict[int, int] = {}
        for r in heads:
            firsts.setdefault(level[r], r)
        heads = tuple(firsts.values())
    up, down = Affine(0), Affine(1)
    steps: list[Step] = [step for ranks in heard for step in awaiting(up, ranks, hierarchy.size)]
    if parent is not None:
        steps += [Claim(up), Publish(up), *awaiting(down, (parent,), hierarchy.size)]
    if any(heard):
        steps += [Claim(down), Publish(down)]
    return Plan("barrier", "hierarchical", rank, hierarchy.size, 2, 0, (Loop(1, tuple(steps)),))


class _Chain:
    """A fold that goes from station to station, each some consecutive ranks; a block is folded by one rank of each, its
    owner there.
    """

    def __init__(
        self, stations: tuple[tuple[int, ...], ...], blocks: int, wide: int, place_of: tuple[int, ...] | None = None
    ) -> None:
        self.stations, self.blocks, self.wide, self.place_of = stations, blocks, wide, place_of
        self.station_of = {r: k for k, ranks in enumerate(stations) for r in ranks}
        self.delay = len(stations)
        self.begins: dict[int, list[int]] = {}

    def owner(self, station: int, block: int) -> int:
        ranks = self.stations[station]
        return ranks[self.turn(block) % len(ranks)]

    def turn(self, block: int) -> int:
        return block if self.place_of is None else self.place_of[block]

    @property
    def places(self) -> int:
        """Enough for what any rank says: a piece of every block, and of those it owns a prefix."""
        owned = (Counter(self.turn(b) % k for b in range(self.blocks)) for k in {len(r) for r in self.stations[:-1]})
        return self.blocks + (self.wide - 1) * max((max(counts.values()) for counts in owned), default=0)

    def place(self, r: int, block: int, role: Role) -> int:
        """Which of the places of rank ``r`` is for what it says of a block: one after the other."""
        if r not in self.begins:
            at = self.station_of[r]
            carries = [at < self.delay - 1 and self.owner(at, b) == r for b in range(self.blocks)]
            self.begins[r] = [0, *accumulate(self.wide if prefix else 1 for prefix in carries)]
        return self.begins[r][block]

    def acts(self, r: int, block: int, *, stages: bool, keeps: bool) -> Iterable[Act]:
        """Of rank ``r``; ``stages`` and ``keeps``: what the last station's owner does with the result."""
        at = self.station_of[r]
        owner, is_last = self.owner(at, block), at == self.delay - 1
        if r != owner:
            yield Act(at, block, SAID, ((r, SAID),), stages=True, keeps=False)
            return
        before = ((self.owner(at - 1, block), FOLDED),) if at else ()
        sources = (*before, *((other, SAID) for other in self.stations[at]))
        yield Act(at + 1, block, FOLDED, sources, stages or not is_last, keeps and is_last, closes=is_last)

    def to(self, target: int, r: int, block: int) -> Iterable[Act]:
        """The same with a result for one rank only."""
        end = self.owner(-1, block)
        yield from self.acts(r, block, stages=end != target, keeps=end == target)
        if r == target != end:
            yield Act(self.delay + 1, block, FETCHED, ((end, FOLDED),), stages=False, keeps=True)


class _Spread:
    """A result on its way from one rank of the domain ``start`` to all, through every other domain once."""

    def __init__(self, hierarchy: Hierarchy, start: int) -> None:
        self.hierarchy, self.start = hierarchy, start
        self.routes = hierarchy.routes(start)
        self.hops = max(route.hops for route in self.routes)
        self.parents = {route.parent for d, route in enumerate(self.routes) if d != start}

    def acts(self, r: int, block: int, source: int, role: Role, delay: int, place: int | None = None) -> Iterable[Act]:
        """Of rank ``r``, for what ``source`` says with this delay; ``place`` says which of a domain's ranks fetches it,
        by default the number of the block.
        """
        if r == source:
            return
        here = self.hierarchy.domain_of[r]
        ranks, route = self.hierarchy.domains[here], self.routes[here]

        def said(domain: int) -> tuple[tuple[int, Role], ...]:
            if domain == self.start:
                return ((source, role),)
            others = self.hierarchy.domains[domain]
            return ((others[(block if place is None else place) % len(others)], FETCHED),)

        if here == self.start or r != said(here)[0][0]:
            yield Act(delay + route.hops + 1, block, FETCHED, said(here), stages=False, keeps=True)
        else:
            goes_on = len(ranks) > 1 or here in self.parents
            yield Act(delay + route.hops, block, FETCHED, said(route.parent), stages=goes_on, keeps=True)


def _as_numbered(r: int, block: int, role: Role) -> int:
    """Where a rank says at most one piece of every block."""
    return block


def _slices(hierarchy: Hierarchy) -> int:
    """Into how many slices a chunk is cut: one for every rank of the largest domain."""
    return max(map(len, hierarchy.domains))


def _share(hierarchy: Hierarchy, blocks: int) -> int:
    """How many of a chunk's slices a rank of the smallest domain fetches."""
    return -(-blocks // min(map(len, hierarchy.domains)))


def _fetched(hierarchy: Hierarchy) -> list[dict[int, int]]:
    """Each domain's number of every block that one of its ranks fetches for it: the how manieth of that rank."""
    found = []
    for here, ranks in enumerate(hierarchy.domains):
        numbers: Counter[int] = Counter()
        of_domain = {}
        for b in range(hierarchy.size):
            if hierarchy.domain_of[b] != here:
                fetcher = hierarchy.place_of[b] % len(ranks)
                of_domain[b] = numbers[fetcher]
                numbers[fetcher] += 1
        found.append(of_domain)
    return found


def _most_fetched(fetched: list[dict[int, int]]) -> int:
    return max((n + 1 for of_domain in fetched for n in of_domain.values()), default=0)


def _most(block_nbytes: int, relay: Relay, limits: Limits, costs: Costs, touches: int) -> int:
    """The bytes of a piece: at most what slots hold, and less where shorter rounds overlap better.

    ``touches``: how often a rank touches a byte, about.
    """
    fits = limits.capacity // relay.places // LINE * LINE
    if not fits:
        raise ValueError(f"{limits.capacity} bytes per round are too few for {relay.places} pieces")
    chunks = chunks_for(touches * block_nbytes * relay.places / costs.bytes_per_second, relay.delay, costs)
    return max(min(fits, max(-(-block_nbytes // chunks // LINE) * LINE, LEAST_PIECE)), LINE)


def chunks_for(seconds: float, delay: int, costs: Costs) -> int:
    """Into how many chunks work of so many seconds is best cut: (c + d)(seconds / c + latency) is least at this c."""
    return max(isqrt(int(delay * seconds / max(costs.latency, 1e-9))), 1)


def fits(kind: str, hierarchy: Hierarchy, limits: Limits, wide: int = 1) -> bool:
    """Whether a line of every piece that a rank says in a round fits a slot."""
    return _staged(kind, hierarchy, wide) * LINE <= limits.capacity


def _staged(kind: str, hierarchy: Hierarchy, wide: int) -> int:
    """How many pieces that is."""
    slices = _slices(hierarchy)
    match kind:
        case "all_reduce":
            return _Chain(hierarchy.runs, slices, wide).places + _share(hierarchy, slices)
        case "reduce":
            return _Chain(hierarchy.runs, slices, wide).places
        case "reduce_scatter":
            return _Chain(hierarchy.runs, hierarchy.size, wide, hierarchy.place_of).places
        case "all_gather":
            return 1 + _most_fetched(_fetched(hierarchy))
        case "broadcast":
            return slices
    raise ValueError(kind)
