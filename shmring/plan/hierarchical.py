"""Hierarchical collectives: as few bytes as possible between locality domains.

*Chain.* A fold visits the domains in rank order. In each *run* of consecutive ranks of one domain, one rank per slice
loads the partial fold from the run before and folds in the operands of its own run. The partial fold is a prefix of the
fold in rank order, ``((x0 + x1) + x2) ...``, so elements are folded in the order of a flat plan, and the bits are the
same. Slots hold a prefix as the kernel has it in registers, in float32 for sums of 16-bit floats; only the last run
rounds, or divides an average. So a prefix may be ``wide`` times as large as the operands.

*Spread.* A result goes to every domain once, along the tree of levels, and is copied within the domain.

Every vector or block is cut so that all ranks of a domain share the traffic over its links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from math import isqrt

from .hierarchy import Hierarchy
from .hops import FOLDED, FORWARDED, STAGED, HopSchedule, PieceTask, Role, cut_blocks, cut_vector, hop_plan
from .limits import DEFAULT_COSTS, DEFAULT_LIMITS, LINE, Costs, Limits
from .pipeline import alone, await_ranks
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
    tasks: list[PieceTask] = []
    for b, end in enumerate(ends):
        tasks += chain.tasks(rank, b, to_slot=True, to_output=True)
        tasks += spread.tasks(rank, b, end, FOLDED, chain.delay)

    def place(r: int, block: int, role: Role) -> int:
        if role is FORWARDED:
            return chain.places + block // len(hierarchy.domains[hierarchy.domain_of[r]])
        return chain.place(r, block, role)

    schedule = HopSchedule(tasks, place, chain.places + _share(hierarchy, blocks), chain.delay + spread.hops, wide)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, schedule, limits, costs, 5))
    return hop_plan(kind, "hierarchical", rank, size, schedule, cut)


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
    """A chain; the root collects from its last run. Across links ``wide`` times (q-1)s bytes, and s more if the root is
    not in the last domain.
    """
    kind, size = "reduce", hierarchy.size
    in_place = 0 if rank == root else None
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, in_place, folds=True)
    blocks = _slices(hierarchy)
    chain = _Chain(hierarchy.runs, blocks, wide)
    tasks: list[PieceTask] = []
    for b in range(blocks):
        tasks += chain.to(root, rank, b)
    schedule = HopSchedule(tasks, chain.place, chain.places, chain.delay, wide)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, schedule, limits, costs, 4))
    return hop_plan(kind, "hierarchical", rank, size, schedule, cut, in_place)


def reduce_scatter(
    rank: int,
    hierarchy: Hierarchy,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    *,
    wide: int = 1,
) -> Plan:
    """A chain for every block; each rank collects its own: ``wide`` times (q-1)s and (1-1/q)s across links."""
    kind, size = "reduce_scatter", hierarchy.size
    in_place = -rank * nbytes
    if size == 1 or not nbytes:
        return alone(kind, rank, size, size * nbytes, in_place, folds=True)
    chain = _Chain(hierarchy.runs, size, wide, hierarchy.place_of)
    tasks: list[PieceTask] = []
    for b in range(size):
        tasks += chain.to(b, rank, b)
    schedule = HopSchedule(tasks, chain.place, chain.places, chain.delay, wide)
    cut = cut_blocks(nbytes, [b * nbytes for b in range(size)], [0] * size, _most(nbytes, schedule, limits, costs, 3))
    return hop_plan(kind, "hierarchical", rank, size, schedule, cut, in_place)


def all_gather(
    rank: int, hierarchy: Hierarchy, nbytes: int, limits: Limits = DEFAULT_LIMITS, costs: Costs = DEFAULT_COSTS
) -> Plan:
    """A spread of every block: (q-1)pm bytes across links."""
    kind, size = "all_gather", hierarchy.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, rank * nbytes)
    tasks = [PieceTask(0, rank, STAGED, ((rank, STAGED),), to_slot=True, to_output=True)]
    spreads = [_Spread(hierarchy, start) for start in range(len(hierarchy.domains))]
    for spread, ranks in zip(spreads, hierarchy.domains, strict=True):
        for b in ranks:
            tasks += spread.tasks(rank, b, b, STAGED, 0, hierarchy.place_of[b])
    fetched = _fetched(hierarchy)

    def place(r: int, block: int, role: Role) -> int:
        return 1 + fetched[hierarchy.domain_of[r]][block] if role is FORWARDED else 0

    schedule = HopSchedule(tasks, place, 1 + _most_fetched(fetched), max(spread.hops for spread in spreads))
    places = [b * nbytes for b in range(size)]
    cut = cut_blocks(nbytes, [0] * size, places, _most(nbytes, schedule, limits, costs, 4))
    return hop_plan(kind, "hierarchical", rank, size, schedule, cut, rank * nbytes)


def broadcast(
    rank: int,
    hierarchy: Hierarchy,
    nbytes: int,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    root: int = 0,
) -> Plan:
    """A spread in slices; each rank of a domain fetches some of them for all: (q-1)s bytes across links."""
    kind, size = "broadcast", hierarchy.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, 0)
    blocks, spread = _slices(hierarchy), _Spread(hierarchy, hierarchy.domain_of[root])
    tasks: list[PieceTask] = []
    for b in range(blocks):
        if rank == root:
            tasks.append(PieceTask(0, b, STAGED, ((rank, STAGED),), to_slot=True, to_output=False))
        tasks += spread.tasks(rank, b, root, STAGED, 0)
    schedule = HopSchedule(tasks, _as_numbered, blocks, spread.hops)
    cut = cut_vector(nbytes, blocks, _most(nbytes // blocks, schedule, limits, costs, 2))
    return hop_plan(kind, "hierarchical", rank, size, schedule, cut)


def barrier(rank: int, hierarchy: Hierarchy) -> Plan:
    """Up and down a tree, without data. The first rank of every domain awaits the other ranks of the domain, then the
    first rank of the next larger domain awaits these first ranks, and so on; then back down. Two rounds at any depth,
    since every rank publishes once in each direction.
    """
    awaited: list[tuple[int, ...]] = []
    parent, heads = None, tuple(range(hierarchy.size))
    for level in (*hierarchy.levels, (0,) * hierarchy.size):
        mine = tuple(r for r in heads if level[r] == level[rank])
        if rank != mine[0]:
            parent = mine[0]
            break
        awaited.append(mine[1:])
        firsts: dict[int, int] = {}
        for r in heads:
            firsts.setdefault(level[r], r)
        heads = tuple(firsts.values())
    up, down = Affine(0), Affine(1)
    steps: list[Step] = [step for ranks in awaited for step in await_ranks(up, ranks, hierarchy.size)]
    if parent is not None:
        steps += [Claim(up), Publish(up), *await_ranks(down, (parent,), hierarchy.size)]
    if any(awaited):
        steps += [Claim(down), Publish(down)]
    return Plan("barrier", "hierarchical", rank, hierarchy.size, 2, 0, (Loop(1, tuple(steps)),))


class _Chain:
    """A fold that goes from run to run of consecutive ranks. In each run, the *owner* of a block folds it."""

    def __init__(
        self, runs: tuple[tuple[int, ...], ...], blocks: int, wide: int, place_of: tuple[int, ...] | None = None
    ) -> None:
        self.runs, self.blocks, self.wide, self.place_of = runs, blocks, wide, place_of
        self.run_of = {r: k for k, ranks in enumerate(runs) for r in ranks}
        self.delay = len(runs)
        self.begins: dict[int, list[int]] = {}

    def owner(self, run: int, block: int) -> int:
        ranks = self.runs[run]
        return ranks[self.turn(block) % len(ranks)]

    def turn(self, block: int) -> int:
        return block if self.place_of is None else self.place_of[block]

    @property
    def places(self) -> int:
        """Enough places for any rank: one for a piece of every block, more for the prefixes of the blocks it owns."""
        owned = (Counter(self.turn(b) % k for b in range(self.blocks)) for k in {len(r) for r in self.runs[:-1]})
        return self.blocks + (self.wide - 1) * max((max(counts.values()) for counts in owned), default=0)

    def place(self, r: int, block: int, role: Role) -> int:
        """Index of the place of ``block`` in the slots of rank ``r``: blocks lie one after the other."""
        if r not in self.begins:
            at = self.run_of[r]
            prefixes = [at < self.delay - 1 and self.owner(at, b) == r for b in range(self.blocks)]
            self.begins[r] = [0, *accumulate(self.wide if prefix else 1 for prefix in prefixes)]
        return self.begins[r][block]

    def tasks(self, r: int, block: int, *, to_slot: bool, to_output: bool) -> Iterable[PieceTask]:
        """The tasks of rank ``r``. ``to_slot``, ``to_output``: where the owner in the last run stores the result."""
        at = self.run_of[r]
        owner, is_last = self.owner(at, block), at == self.delay - 1
        if r != owner:
            yield PieceTask(at, block, STAGED, ((r, STAGED),), to_slot=True, to_output=False)
            return
        before = ((self.owner(at - 1, block), FOLDED),) if at else ()
        sources = (*before, *((other, STAGED) for other in self.runs[at]))
        yield PieceTask(at + 1, block, FOLDED, sources, to_slot or not is_last, to_output and is_last, closes=is_last)

    def to(self, target: int, r: int, block: int) -> Iterable[PieceTask]:
        """The tasks of rank ``r`` when only rank ``target`` needs the result."""
        end = self.owner(-1, block)
        yield from self.tasks(r, block, to_slot=end != target, to_output=end == target)
        if r == target != end:
            yield PieceTask(self.delay + 1, block, FORWARDED, ((end, FOLDED),), to_slot=False, to_output=True)


class _Spread:
    """The distribution of a result from one rank of domain ``start``; it enters every other domain once."""

    def __init__(self, hierarchy: Hierarchy, start: int) -> None:
        self.hierarchy, self.start = hierarchy, start
        self.routes = hierarchy.routes(start)
        self.hops = max(route.hops for route in self.routes)
        self.parents = {route.parent for d, route in enumerate(self.routes) if d != start}

    def tasks(
        self, r: int, block: int, source: int, role: Role, delay: int, place: int | None = None
    ) -> Iterable[PieceTask]:
        """The tasks of rank ``r`` for a block that ``source`` publishes with this delay.

        ``place`` selects the rank of a domain that fetches the block; by default the number of the block.
        """
        if r == source:
            return
        here = self.hierarchy.domain_of[r]
        ranks, route = self.hierarchy.domains[here], self.routes[here]

        def origin(domain: int) -> tuple[tuple[int, Role], ...]:
            if domain == self.start:
                return ((source, role),)
            others = self.hierarchy.domains[domain]
            return ((others[(block if place is None else place) % len(others)], FORWARDED),)

        if here == self.start or r != origin(here)[0][0]:
            yield PieceTask(delay + route.hops + 1, block, FORWARDED, origin(here), to_slot=False, to_output=True)
        else:
            is_read = len(ranks) > 1 or here in self.parents
            yield PieceTask(delay + route.hops, block, FORWARDED, origin(route.parent), to_slot=is_read, to_output=True)


def _as_numbered(r: int, block: int, role: Role) -> int:
    """The place of a block where a rank stages at most one piece of each."""
    return block


def _slices(hierarchy: Hierarchy) -> int:
    """The number of slices of a chunk: one for every rank of the largest domain."""
    return max(map(len, hierarchy.domains))


def _share(hierarchy: Hierarchy, blocks: int) -> int:
    """The number of slices of a chunk that a rank of the smallest domain fetches."""
    return -(-blocks // min(map(len, hierarchy.domains)))


def _fetched(hierarchy: Hierarchy) -> list[dict[int, int]]:
    """For each domain and each block of other domains, its index among the blocks that the same rank fetches."""
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


def _most(block_nbytes: int, schedule: HopSchedule, limits: Limits, costs: Costs, touches: int) -> int:
    """The bytes of a piece: at most what slots hold, and less where shorter rounds overlap better.

    ``touches``: approximate number of times that a rank touches a byte.
    """
    fits = limits.capacity // schedule.places // LINE * LINE
    if not fits:
        raise ValueError(f"{limits.capacity} bytes per round are too few for {schedule.places} pieces")
    chunks = chunks_for(touches * block_nbytes * schedule.places / costs.bytes_per_second, schedule.delay, costs)
    return max(min(fits, max(-(-block_nbytes // chunks // LINE) * LINE, LEAST_PIECE)), LINE)


def chunks_for(seconds: float, delay: int, costs: Costs) -> int:
    """The number c of chunks that minimizes (c + delay)(seconds / c + latency)."""
    return max(isqrt(int(delay * seconds / max(costs.latency, 1e-9))), 1)


def fits(kind: str, hierarchy: Hierarchy, limits: Limits, wide: int = 1) -> bool:
    """Whether a slot has room for one line of every piece that a rank stages in a round."""
    return _staged(kind, hierarchy, wide) * LINE <= limits.capacity


def _staged(kind: str, hierarchy: Hierarchy, wide: int) -> int:
    """The number of pieces that a rank stages in a round."""
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
    raise ValueError(f"no hierarchical plan for {kind!r}")
