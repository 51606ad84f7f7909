"""The explanation of a collective: the algorithms that a size takes and tries, their cost, and the threshold."""

from __future__ import annotations

import operator
from typing import Any

from shmring.collectives.plan.choose import BUILDERS, PLANNED, flat_reduce_limit, one_shot_limit, schedules
from shmring.collectives.plan.cost import cost, dependent_syncs
from shmring.collectives.plan.hierarchical import FOLDING, HIERARCHICAL_BUILDERS, hierarchical_from
from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.collectives.plan.limits import LINE, Limits
from shmring.config import MOST_NBYTES
from shmring.dtypes import DTYPE_CODES, op_code, widening

# The threshold between the algorithms.
THRESHOLDS = {
    "all_reduce": ("one_shot_nbytes", one_shot_limit),
    "reduce": ("flat_reduce_nbytes", flat_reduce_limit),
}


def explain(comm: Any, collective: str, nbytes: int, root: int, op: str, dtype: str) -> str:
    """See `Communicator.explain`."""
    nbytes, root = operator.index(nbytes), operator.index(root)
    if collective not in PLANNED:
        raise ValueError(f"no schedule for {collective!r}; there are schedules for {', '.join(PLANNED)}")
    blocks = COLLECTIVES[collective].blocks_in.among(comm.size)
    if not 0 <= nbytes <= MOST_NBYTES or nbytes % blocks:
        raise ValueError(f"nbytes={nbytes}: must be a multiple of {blocks} from 0 to {MOST_NBYTES} for {collective}")
    if not 0 <= root < comm.size:
        raise ValueError(f"root={root}: must be a rank, from 0 to {comm.size - 1}")
    if dtype not in DTYPE_CODES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPE_CODES)}")
    return "\n".join(_explanation(comm, collective, nbytes, blocks, root, op, dtype))


def _explanation(comm: Any, collective: str, nbytes: int, blocks: int, root: int, op: str, dtype: str) -> list[str]:
    wide = widening(op_code(op), DTYPE_CODES[dtype])
    limit = comm._engine.thresholds.eager_nbytes
    eager = nbytes <= limit and COLLECTIVES[collective].is_eager
    limits, hierarchy = comm._engine.limits, comm._engine.hierarchy
    candidates = schedules(collective, comm.size, nbytes // blocks, limits, hierarchy, wide)
    planned = candidates[0]
    sharing = comm._engine.sharing
    one_process = sharing is not None and sharing.takes_private(collective, nbytes // blocks)
    is_read = sharing is not None and sharing.reads_private(collective, nbytes // blocks)
    candidates = (*candidates, "zero_copy") if is_read else candidates
    planned = "zero_copy" if one_process else planned
    lines = [f"{collective} of {nbytes} bytes among {comm.size} ranks: {'eager' if eager else planned}"]
    why = comm._engine.thresholds.why
    lines.append(f"  eager: {'taken' if eager else 'no'}, up to {limit} bytes ({why.get('eager_nbytes', 'default')})")
    for kind, name in BUILDERS:
        if kind == collective and ("zero_copy" not in name or name in (planned, *candidates)):
            taken = "no" if eager or one_process else _standing(name, candidates)
            taken = "taken" if one_process and not eager and name == planned else taken
            lines.append(f"  {name}: {taken}, {_priced(comm, kind, name, nbytes // blocks, root)}")
    if hierarchy is not None and collective in HIERARCHICAL_BUILDERS:
        taken = "no" if eager or one_process else _standing("hierarchical", candidates)
        lines.append(f"  hierarchical: {taken}, {len(hierarchy.domains)} domains: {_nested(comm, collective, wide)}")
    if collective in THRESHOLDS:
        name, limit_of = THRESHOLDS[collective]
        lines.append(f"  {name} = {limit_of(comm.size, limits):.0f} ({why[name]})")
    return lines


def _standing(name: str, candidates: tuple[str, ...]) -> str:
    """Whether an algorithm is taken, in a word."""
    return "taken" if name == candidates[0] else "tried" if name in candidates else "no"


def _nested(comm: Any, collective: str, wide: int) -> str:
    """From which size up the collective is hierarchical, in words."""
    e = comm._engine
    if collective in FOLDING and not e.hierarchy.is_in_rank_order:
        return "their ranks are not consecutive"
    limit, why = hierarchical_from(collective, e.hierarchy, e.limits, wide), e.thresholds.why["hierarchical_nbytes"]
    return "of one rank each, or slots too small" if limit == float("inf") else f"above {limit:.0f} bytes ({why})"


def _priced(comm: Any, kind: str, name: str, nbytes: int, root: int) -> str:
    """The cost of one algorithm, in words."""
    build = BUILDERS[kind, name]
    rooted = (root,) if COLLECTIVES[kind].has_root else ()
    try:
        plan = build(comm.rank, comm.size, nbytes, 1, comm._engine.limits, *rooted)
    except ValueError as error:
        return str(error)
    # The count is the same for any size that fits in one round, and any number of ranks from 3 up.
    few = [build(r, 3, 3 * LINE, 1, Limits(), *([0] if rooted else [])) for r in range(3)]
    syncs = dependent_syncs(few) if comm.size > 1 else 0
    touched = cost(plan).touched_nbytes
    return (
        f"{syncs} synchronisation{'s' * (syncs != 1)}, {plan.rounds} round{'s' * (plan.rounds != 1)}, "
        f"{touched} bytes touched"
    )
