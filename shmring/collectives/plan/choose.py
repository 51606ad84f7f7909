"""The algorithms for a call, of which the cost model takes one to begin with.

`schedules` depends on its arguments only, which are equal on all ranks, so all ranks find the same ones. Its first one
is a guess, and measured times choose among all (`shmring.collectives.engine.variants`). The choice never changes a
result, only its cost (see `reduction`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from . import data_movement, exchange, reduction, zero_copy
from .hierarchical import FOLDING, HIERARCHICAL_BUILDERS, hierarchical_from
from .hierarchy import Hierarchy
from .kinds import COLLECTIVES
from .limits import DEFAULT_LIMITS, LINE, Limits
from .steps import Plan
from .two_shot import slice_capacity

Builder = Callable[..., Plan]

# (kind, algorithm) -> builder. The first one of a kind is for small messages on private buffers.
BUILDERS: dict[tuple[str, str], Builder] = {
    ("all_reduce", "one_shot"): reduction.all_reduce_one_shot,
    ("all_reduce", "two_shot"): reduction.all_reduce_two_shot,
    ("all_reduce", "exchange"): exchange.all_reduce_exchange,
    ("all_reduce", "zero_copy"): zero_copy.all_reduce,
    ("all_reduce", "zero_copy_shared"): zero_copy.all_reduce_shared,
    ("reduce", "flat"): reduction.reduce_flat,
    ("reduce", "sliced"): reduction.reduce_sliced,
    ("reduce", "zero_copy"): zero_copy.reduce,
    ("reduce_scatter", "staged"): reduction.reduce_scatter,
    ("reduce_scatter", "zero_copy"): zero_copy.reduce_scatter,
    ("scan", "staged"): reduction.scan,
    ("exscan", "staged"): reduction.exscan,
    ("broadcast", "staged"): data_movement.broadcast,
    ("broadcast", "zero_copy"): zero_copy.broadcast,
    ("all_gather", "staged"): data_movement.all_gather,
    ("all_gather", "zero_copy"): zero_copy.all_gather,
    ("all_gather", "zero_copy_shared"): zero_copy.all_gather_shared,
    ("gather", "staged"): data_movement.gather,
    ("gather", "zero_copy"): zero_copy.gather,
    ("scatter", "staged"): data_movement.scatter,
    ("scatter", "zero_copy"): zero_copy.scatter,
    ("all_to_all", "staged"): data_movement.all_to_all,
    ("all_to_all", "zero_copy"): zero_copy.all_to_all,
}
PLANNED = tuple(dict.fromkeys(kind for kind, _ in BUILDERS))  # those that have plans
# With more ranks an exchange stores more than it saves: never faster (docs/maintainers/experiments.md), so not tried.
EXCHANGE_RANKS = 4
# The piece with which calls begin, near the best one on every processor measured (docs/maintainers/experiments.md), and
# the least bytes of a piece and of each rank's part of it.
FIRST_PIECE_NBYTES = 1 << 17
LEAST_PIECE_NBYTES, LEAST_PART_NBYTES = 1 << 14, 1 << 10
ROOTED = frozenset(kind.name for kind in COLLECTIVES.values() if kind.has_root)


class Dimension(NamedTuple):
    """One way in which calls of a kind and size may differ and give the same bits.

    Attributes
    ----------
    name : str
    setting : str
        The setting that pins it where it is not automatic.
    values : tuple of str
        What the engine makes of one plan; empty: each value is another plan (`ways`).
    """

    name: str
    setting: str
    values: tuple[str, ...] = ()


# The dimensions of the variants of a call, in the order in which they are tried. Which values are tried for a call,
# `offer_of` in collectives/engine/variants.pyx decides.
DIMENSIONS = (
    Dimension("stores", "stores", ("ordinary", "streaming", "prefetched", "string")),
    Dimension("path", "direct", ("direct", "staged")),
    Dimension("output", "past_cache_nbytes", ("by rule", "ordinary", "streaming", "string")),
    Dimension("schedule", "stores"),
    Dimension("piece", "round_nbytes"),
    Dimension("threads", "split_nbytes"),
)


class Way(NamedTuple):
    """How a plan is made.

    Attributes
    ----------
    schedule : str
        The algorithm.
    threads : int
        Of each rank.
    limits : Mapping
        Fields of `Limits` that are other than those of the communicator.
    """

    schedule: str
    threads: int = 1
    limits: Mapping[str, Any] = {}


def one_shot_limit(size: int, limits: Limits) -> float:
    """Bytes up to which an all-reduce begins with one shot: if not given, those up to which it is cheaper than two.

    A rank touches (p+3)s bytes with one exposed sync, against (5-2/p)s with two.
    """
    given = limits.one_shot_nbytes
    return limits.costs.sync_nbytes / (size - 2 + 2 / size) if given is None else given


def flat_reduce_limit(size: int, limits: Limits) -> float:
    """Bytes up to which the root begins to reduce alone: if not given, those up to which a sliced reduce is no cheaper.

    The root touches (p+1)s bytes with one exposed sync, against 4s with two.
    """
    given = limits.flat_reduce_nbytes
    derived = limits.costs.sync_nbytes / (size - 3) if size > 3 else float("inf")
    return derived if given is None else given


def flat_schedules(kind: str, size: int, nbytes: int | Sequence, limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """The algorithms on private buffers that are no more than `Limits.slack` times from where one is the best; first
    the one that the cost model takes."""
    if kind not in PLANNED:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(PLANNED)}")
    if kind not in ("all_reduce", "reduce"):
        return ("staged",)
    if not isinstance(nbytes, int):
        raise TypeError(f"{kind} takes one number of bytes, not {nbytes!r}")
    fits = slice_capacity(size - 1, limits) > 0
    if kind == "all_reduce":
        small, large, limit = "one_shot", "two_shot", one_shot_limit(size, limits)
    else:
        small, large, limit = "flat", "sliced", flat_reduce_limit(size, limits)
        fits = fits and size > 2
    if not fits or size == 1 or nbytes * limits.slack <= limit:
        return (large,) if fits and nbytes > limit else (small,)
    found = (small, large) if nbytes <= limit else (large, small) if nbytes <= limit * limits.slack else (large,)
    # A vector with fewer lines than ranks has slices of no bytes.
    if kind == "all_reduce" and size <= EXCHANGE_RANKS and nbytes > (size - 1) * LINE:
        found = (*found, "exchange")
    return found


def schedules(
    kind: str,
    size: int,
    nbytes: int | Sequence,
    limits: Limits = DEFAULT_LIMITS,
    hierarchy: Hierarchy | None = None,
    wide: int = 1,
) -> tuple[str, ...]:
    """The algorithms on private buffers that come into question, first the one that the cost model takes.

    ``nbytes`` is the size of the vector (all_reduce, reduce, scan, exscan, broadcast), or of one block (reduce_scatter,
    all_gather, gather, scatter, all_to_all), or a sequence for blocks of different sizes. ``hierarchy``: the locality
    domains of the ranks, if there are several; blocks of different sizes take flat plans all the same. ``wide``: bytes
    of an element of a prefix, in elements of the operands (`shmring.dtypes.widening`).
    """
    found = flat_schedules(kind, size, nbytes, limits)
    if not isinstance(nbytes, int):
        return found
    whole = nbytes * COLLECTIVES[kind].most_blocks(size)
    limit = hierarchical_from(kind, hierarchy, limits, wide)
    if whole > limit:
        return ("hierarchical", *found) if limits.slack > 1 else ("hierarchical",)
    return (*found, "hierarchical") if whole * limits.slack > limit else found


def pieces(kind: str, size: int, nbytes: int | Sequence, limits: Limits = DEFAULT_LIMITS) -> tuple[int, ...]:
    """The most bytes that a rank may stage in one round, of those that come into question: first the one to begin with,
    then a whole slot and a quarter of the first one, where these make a difference. `Limits.round_nbytes` pins it."""
    if limits.round_nbytes is not None or not isinstance(nbytes, int):
        return (limits.capacity,)
    least = max(LEAST_PIECE_NBYTES, size * LEAST_PART_NBYTES)
    first = min(limits.capacity, max(FIRST_PIECE_NBYTES, least))
    staged = nbytes * max(COLLECTIVES[kind].blocks_in.among(size) - 1, 1)
    others = [n for n in (limits.capacity, first // 4 // LINE * LINE) if n != first and n >= least]
    return (first, *(n for n in others if staged > min(n, first)))


def ways(
    kind: str,
    size: int,
    nbytes: int | Sequence,
    limits: Limits = DEFAULT_LIMITS,
    hierarchy: Hierarchy | None = None,
    wide: int = 1,
    threads: Sequence[int] = (1,),
) -> tuple[dict[str, tuple[str, ...]], list[Way]]:
    """The names of the values of each dimension of plans for a call, and a `Way` for each combination of them.

    Arguments as `schedules`; ``threads``: the numbers of threads that come into question. The first value of each
    dimension is the one to begin with; a dimension that does not apply to the call has no other. The values of the
    first dimension change fastest: the position of a way is a number with these values as digits, of which that of the
    first dimension is the last.
    """
    values: dict[str, dict[str, dict[str, Any]]] = {
        "schedule": {name: {"schedule": name} for name in schedules(kind, size, nbytes, limits, hierarchy, wide)},
        "piece": {f"{n} bytes": {"limits": {"round_nbytes": n}} for n in pieces(kind, size, nbytes, limits)},
        "threads": {name: {"threads": n} for name, n in zip(("by rule", "otherwise"), threads, strict=False)},
    }
    names = {name: tuple(changes) for name, changes in values.items()}
    rows = itertools.product(*(changes.values() for changes in reversed(values.values())))
    return names, [Way(**{name: value for change in row for name, value in change.items()}) for row in rows]


def build_plan(
    kind: str,
    name: str,
    rank: int,
    size: int,
    nbytes: int | Sequence,
    itemsize: int = 1,
    root: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    hierarchy: Hierarchy | None = None,
    wide: int = 1,
) -> Plan:
    """The plan of one rank by the algorithm of that name, of `BUILDERS` or ``hierarchical``.

    Arguments as `schedules`; ``itemsize``, the bytes of an element, divides 64.
    """
    if name == "hierarchical":
        options = {"root": root} if kind in ROOTED else {"wide": wide} if kind in FOLDING else {}
        return HIERARCHICAL_BUILDERS[kind](rank, hierarchy, nbytes, limits, **options)
    rooted = (root,) if kind in ROOTED else ()
    return BUILDERS[kind, name](rank, size, nbytes, itemsize, limits, *rooted)
