"""Hierarchical collectives: as few bytes as possible between locality domains.

*Chain.* A fold visits the domains in rank order. In each domain one rank per block, its *handler* there, loads the
partial fold from the handler in the domain before and folds in the operands of its own domain. The partial fold is a
prefix of the fold in rank order, ``((x0 + x1) + x2) ...``, so elements are folded in the order of a flat plan, and the
bits are the same. This needs domains of consecutive ranks (`Hierarchy.is_in_rank_order`). Slots hold a prefix as the
kernel has it in registers, in float32 for sums of 16-bit floats; only the last domain rounds, or divides an average. So
a prefix may be ``wide`` times as large as the operands.

*Spread.* A result enters every other domain once, fetched by its handler there, and is copied within the domain.

Blocks are dealt to the ranks of a domain in turn, so that all of them share the traffic over its links. A vector is cut
into as many blocks (slices) as the largest domain has ranks. Example: an all-reduce of four ranks in two domains, in
which slice b is handled by the b-th rank of each domain. Round by round, with what each rank does with slice 0 of chunk
0 (slice 1 is handled alike by ranks 1 and 3):

=====  =======================  =============  ============================  =============
round  rank 0                   rank 1         rank 2                        rank 3
=====  =======================  =============  ============================  =============
0                               stages x1
1      folds x0 + x1: a prefix                                               stages x3
2                                              folds prefix + x2 + x3: done
3      fetches the result                                                    copies from 2
4                               copies from 0
=====  =======================  =============  ============================  =============

Chunk k does the same k rounds later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isqrt

from .hierarchy import Hierarchy
from .hops import Hops, Task, cut_blocks, cut_vector, hop_plan
from .limits import DEFAULT_LIMITS, LINE, Limits
from .pipeline import alone
from .steps import Plan

LEAST_PIECE = 1024  # bytes; smaller ones cost more in steps than shorter rounds gain
TOUCHES = 4  # about as often a rank loads or stores a byte of its share
OWN = -1  # the place of this rank's own operand: not in a slot

# Collectives that fold operands.
FOLDING = frozenset({"all_reduce", "reduce_scatter"})


class _Blocks:
    """The handlers of the blocks, and the places of their pieces in a slot.

    First come the operands that a rank stages for the handlers of its domain, then the folds that it makes, then the
    pieces that it fetches from another domain.

    Parameters
    ----------
    hierarchy : Hierarchy
    kind : str
    wide : int
        Places that a prefix takes.
    """

    def __init__(self, hierarchy: Hierarchy, kind: str, wide: int = 1) -> None:
        self.hierarchy, self.wide = hierarchy, wide
        self.last = len(hierarchy.domains) - 1
        # Blocks are numbered group by group, and dealt to the ranks of a domain by their index in the group.
        groups, self.index = 1, tuple(range(hierarchy.most))
        self.group = (0,) * hierarchy.most
        if kind in ("reduce_scatter", "all_gather"):
            groups, self.index, self.group = len(hierarchy.domains), hierarchy.index_of, hierarchy.domain_of
        share = -(-hierarchy.most // hierarchy.least)  # most blocks of a group with the same handler
        self.share = share
        self.folds_begin = 1 if kind == "all_gather" else len(self.index)
        self.fetched_begin = self.folds_begin + (groups * share * wide if kind in FOLDING else 0)
        self.places = self.fetched_begin + (groups * share if kind != "reduce_scatter" else 0)

    def __len__(self) -> int:
        return len(self.index)

    def handler(self, domain: int, block: int) -> int:
        """The rank that folds or fetches the block in this domain."""
        ranks = self.hierarchy.domains[domain]
        return ranks[self.index[block] % len(ranks)]

    def _number(self, block: int) -> int:
        """The number of the block among those of its handler, in any domain."""
        return self.group[block] * self.share + self.index[block] // self.hierarchy.least

    def fold_place(self, block: int) -> int:
        return self.folds_begin + self._number(block) * self.wide

    def fetched_place(self, block: int) -> int:
        return self.fetched_begin + self._number(block)

    def chain(self, r: int, block: int, target: int | None = None) -> Iterable[Task]:
        """The tasks of rank ``r`` in the fold of a block; ``target``: the only rank that needs it, None for all."""
        here = self.hierarchy.domain_of[r]
        handler, end = self.handler(here, block), self.handler(self.last, block)
        if r != handler:
            yield Task(here, block, ((r, OWN),), place=block)
        else:
            prefix = [(self.handler(here - 1, block), self.fold_place(block))] if here else []
            yield Task(
                here + 1,
                block,
                (*prefix, *((other, block) for other in self.hierarchy.domains[here])),
                place=None if r == end == target else self.fold_place(block),
                to_output=r == end and target in (None, r),
                folds=True,
                opens=not here,
                closes=here == self.last,
            )
        if r == target != end:
            yield Task(self.last + 2, block, ((end, self.fold_place(block)),), to_output=True)

    def spread(self, r: int, block: int, source: int, place: int, delay: int) -> Iterable[Task]:
        """The tasks of rank ``r`` in the distribution of a block that ``source`` publishes with this delay."""
        if r == source:
            return
        here = self.hierarchy.domain_of[r]
        handler = self.handler(here, block)
        if here == self.hierarchy.domain_of[source]:
            yield Task(delay + 1, block, ((source, place),), to_output=True)
        elif r == handler:
            is_read = len(self.hierarchy.domains[here]) > 1
            own_place = self.fetched_place(block) if is_read else None
            yield Task(delay + 1, block, ((source, place),), own_place, to_output=True)
        else:
            yield Task(delay + 2, block, ((handler, self.fetched_place(block)),), to_output=True)

    def most(self, block_nbytes: int, hops: int, limits: Limits) -> int:
        """The bytes of a piece: at most what slots hold, and less where shorter rounds overlap better.

        The number c of chunks minimizes ``(c + hops) (seconds / c + latency)``.
        """
        fits = limits.capacity // self.places // LINE * LINE
        if not fits:
            raise ValueError(f"{limits.capacity} bytes per round are too few for {self.places} pieces")
        seconds = TOUCHES * block_nbytes * self.places / limits.costs.bytes_per_second
        chunks = max(isqrt(int(hops * seconds / max(limits.costs.latency, 1e-9))), 1)
        return max(min(fits, max(-(-block_nbytes // chunks // LINE) * LINE, LEAST_PIECE)), LINE)


def all_reduce(rank: int, hierarchy: Hierarchy, nbytes: int, limits: Limits = DEFAULT_LIMITS, *, wide: int = 1) -> Plan:
    """A chain, then a spread: (q-1)s bytes across links each, ``wide`` times that in the chain."""
    kind, size = "all_reduce", hierarchy.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, folds=True)
    blocks = _Blocks(hierarchy, kind, wide)
    q = len(hierarchy.domains)
    tasks: list[Task] = []
    for b in range(len(blocks)):
        tasks += blocks.chain(rank, b)
        tasks += blocks.spread(rank, b, blocks.handler(blocks.last, b), blocks.fold_place(b), q)
    cut = cut_vector(nbytes, len(blocks), blocks.most(nbytes // len(blocks), q + 1, limits))
    return hop_plan(kind, Hops(rank, size, tasks, cut, q + 1, wide), blocks.places)


def reduce_scatter(
    rank: int, hierarchy: Hierarchy, nbytes: int, limits: Limits = DEFAULT_LIMITS, *, wide: int = 1
) -> Plan:
    """A chain for every block; each rank collects its own: ``wide`` times (q-1)s and (1-1/q)s across links."""
    kind, size = "reduce_scatter", hierarchy.size
    in_place = -rank * nbytes
    if size == 1 or not nbytes:
        return alone(kind, rank, size, size * nbytes, in_place, folds=True)
    blocks = _Blocks(hierarchy, kind, wide)
    q = len(hierarchy.domains)
    tasks = [task for b in range(size) for task in blocks.chain(rank, b, target=b)]
    cut = cut_blocks(nbytes, [b * nbytes for b in range(size)], [0] * size, blocks.most(nbytes, q, limits))
    return hop_plan(kind, Hops(rank, size, tasks, cut, q, wide), blocks.places, in_place)


def all_gather(rank: int, hierarchy: Hierarchy, nbytes: int, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """A spread of every block: (q-1)pm bytes across links."""
    kind, size = "all_gather", hierarchy.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, nbytes, rank * nbytes)
    blocks = _Blocks(hierarchy, kind)
    tasks = [Task(0, rank, ((rank, OWN),), place=0, to_output=True)]
    for b in range(size):
        tasks += blocks.spread(rank, b, b, 0, 0)
    cut = cut_blocks(nbytes, [0] * size, [b * nbytes for b in range(size)], blocks.most(nbytes, 1, limits))
    return hop_plan(kind, Hops(rank, size, tasks, cut, 1), blocks.places, rank * nbytes)


def broadcast(rank: int, hierarchy: Hierarchy, nbytes: int, limits: Limits = DEFAULT_LIMITS, root: int = 0) -> Plan:
    """A spread in slices; each rank of a domain fetches some of them for all: (q-1)s bytes across links."""
    kind, size = "broadcast", hierarchy.size
    if size == 1 or not nbytes:
        return alone(kind, rank, size, 0)
    blocks = _Blocks(hierarchy, kind)
    tasks: list[Task] = []
    for b in range(len(blocks)):
        if rank == root:
            tasks.append(Task(0, b, ((rank, OWN),), place=b))
        tasks += blocks.spread(rank, b, root, b, 0)
    cut = cut_vector(nbytes, len(blocks), blocks.most(nbytes // len(blocks), 1, limits))
    return hop_plan(kind, Hops(rank, size, tasks, cut, 1), blocks.places)


HIERARCHICAL_BUILDERS: dict[str, Callable[..., Plan]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "broadcast": broadcast,
}


def hierarchical_from(kind: str, hierarchy: Hierarchy | None, limits: Limits, wide: int = 1) -> float:
    """Bytes (of the vector, or of all blocks) above which a collective begins with a hierarchical plan; infinity where
    it has none.

    If not given, a first guess: each of the m ranks of a domain loads from others what a hierarchical plan of q domains
    loads once, in q + 2 synchronisations at most.
    """
    if hierarchy is None or len(hierarchy.domains) < 2 or kind not in HIERARCHICAL_BUILDERS:
        return float("inf")
    if kind in FOLDING and not hierarchy.is_in_rank_order:
        return float("inf")
    if _Blocks(hierarchy, kind, wide).places * LINE > limits.capacity:
        return float("inf")
    if limits.hierarchical_nbytes is not None:
        return limits.hierarchical_nbytes
    syncs, saved = len(hierarchy.domains) + 2, hierarchy.most - 1
    return syncs * limits.costs.sync_nbytes / saved if saved else float("inf")
