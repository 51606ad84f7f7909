"""The choice of the algorithm for a call, by the cost model.

The choice depends on its arguments only, which are equal on all ranks, so all ranks choose alike. It never changes a
result, only its cost (see `reduction`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import data_movement, exchange, reduction, zero_copy
from .hierarchical import FOLDING, HIERARCHICAL_BUILDERS, is_hierarchical
from .hierarchy import Hierarchy
from .limits import DEFAULT_COSTS, DEFAULT_LIMITS, LINE, Costs, Limits
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
KINDS = tuple(dict.fromkeys(kind for kind, _ in BUILDERS))
# With more ranks an exchange stores more than it saves: never faster (docs/maintainers/experiments.md), so not tried.
EXCHANGE_RANKS = 4
ROOTED = frozenset({"reduce", "broadcast", "gather", "scatter"})


def one_shot_limit(size: int, costs: Costs) -> float:
    """Bytes up to which the one-shot all-reduce is cheaper than the two-shot one.

    A rank touches (p+3)s bytes with one exposed sync, against (5-2/p)s with two.
    """
    return costs.latency * costs.bytes_per_second / (size - 2 + 2 / size)


def flat_reduce_limit(size: int, costs: Costs) -> float:
    """Bytes up to which a reduce by the root alone is cheaper than a sliced one.

    The root touches (p+1)s bytes with one exposed sync, against 4s with two.
    """
    return costs.latency * costs.bytes_per_second / (size - 3) if size > 3 else float("inf")


def algorithm(
    kind: str,
    size: int,
    nbytes: int | Sequence,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    *,
    shared_arrays: bool = False,
    in_place: bool = False,
    one_result: bool = False,
) -> str:
    """The name of the flat or zero-copy algorithm that `choose` takes."""
    if kind not in KINDS:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(KINDS)}")
    # An all-to-all in place would overwrite blocks that other ranks still read; scans have no zero-copy form.
    if shared_arrays and (kind, "zero_copy") in BUILDERS and not (kind == "all_to_all" and in_place):
        return "zero_copy_shared" if one_result else "zero_copy"
    if kind not in ("all_reduce", "reduce"):
        return "staged"
    if not isinstance(nbytes, int):
        raise TypeError(f"{kind} takes one number of bytes, not {nbytes!r}")
    if kind == "all_reduce":
        limit = one_shot_limit(size, costs) if limits.one_shot_nbytes is None else limits.one_shot_nbytes
        fits = slice_capacity(size - 1, limits)
        return "one_shot" if nbytes <= limit or not fits else "two_shot"
    limit = flat_reduce_limit(size, costs) if limits.flat_reduce_nbytes is None else limits.flat_reduce_nbytes
    fits = slice_capacity(size - 1, limits)
    return "flat" if nbytes <= limit or not fits or size == 2 else "sliced"


def choose(
    kind: str,
    rank: int,
    size: int,
    nbytes: int | Sequence,
    itemsize: int = 1,
    *,
    root: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    costs: Costs = DEFAULT_COSTS,
    shared_arrays: bool = False,
    in_place: bool = False,
    one_result: bool = False,
    hierarchy: Hierarchy | None = None,
    wide: int = 1,
) -> Plan:
    """The plan of one rank for a collective: one of `KINDS`.

    ``nbytes`` is the size of the vector (all_reduce, reduce, scan, exscan, broadcast), or of one block (reduce_scatter,
    all_gather, gather, scatter, all_to_all), or a sequence for blocks of different sizes; ``itemsize``, the bytes of an
    element, divides 64. ``shared_arrays``: all buffers are in shared arrays, which every rank has mapped. ``in_place``:
    the ranks work in place, all or none; matters to all_to_all on shared arrays only. ``one_result``: one shared array
    is the output of all ranks, for all_reduce and all_gather with ``shared_arrays``. ``hierarchy``: the locality
    domains of the ranks, if there are several; shared arrays and blocks of different sizes take flat plans all the
    same. ``wide``: bytes of an element of a prefix, in elements of the operands (`shmring.dtypes.widening`).
    """
    if hierarchy is not None and not shared_arrays and isinstance(nbytes, int):
        whole = nbytes * size if kind in ("reduce_scatter", "all_gather") else nbytes
        if is_hierarchical(kind, hierarchy, whole, limits, costs, wide):
            options = {"root": root} if kind in ROOTED else {"wide": wide} if kind in FOLDING else {}
            return HIERARCHICAL_BUILDERS[kind](rank, hierarchy, nbytes, limits, costs, **options)
    name = algorithm(
        kind, size, nbytes, limits, costs, shared_arrays=shared_arrays, in_place=in_place, one_result=one_result
    )
    if kind in ROOTED:
        return BUILDERS[kind, name](rank, size, nbytes, itemsize, limits, root)
    plan = BUILDERS[kind, name](rank, size, nbytes, itemsize, limits)
    # Both begin alike if each rank owns a slice of the first chunk.
    if name == "two_shot" and 1 < size <= EXCHANGE_RANKS and isinstance(nbytes, int) and nbytes > (size - 1) * LINE:
        plan = plan._replace(exchange=exchange.all_reduce_exchange(rank, size, nbytes, itemsize, limits))
    return plan
