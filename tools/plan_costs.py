"""The cost tables of ``docs/maintainers/algorithms.md``, counted from plans (``python tools/plan_tables.py costs``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from shmring.plan.choose import BUILDERS, ROOTED, build_plan, schedules
from shmring.plan.cost import Cost, cost, dependent_syncs
from shmring.plan.hierarchy import Hierarchy
from shmring.plan.limits import DEFAULT_LIMITS, LINE, Limits
from shmring.plan.steps import Plan
from shmring.plan.thread_shares import cut, split_limit, waking

# The outbox of a helper thread, unless configured smaller (SHMRING_HELPER_SLOT_NBYTES in _c/layout.h).
SHARE_LIMITS = Limits(slot_nbytes=65536)

SIZES = (2, 4, 8, 64, 1024)


def total(plans: Iterable[Plan], *, in_place: bool = False, domains: Sequence[int] | None = None) -> Cost:
    """The cost of all ranks together."""
    return Cost(*map(sum, zip(*(cost(p, in_place=in_place, domains=domains) for p in plans), strict=True)))


def choose(
    kind: str,
    rank: int,
    size: int,
    nbytes: int | Sequence,
    itemsize: int = 1,
    *,
    root: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    shared_arrays: bool = False,
    in_place: bool = False,
    hierarchy: Hierarchy | None = None,
    wide: int = 1,
) -> Plan:
    """The plan of one rank that a communicator begins with; arguments as `schedules`.

    ``shared_arrays``: all buffers are in shared arrays, which every rank has mapped; then an all_to_all in place is
    staged, as it would overwrite blocks that other ranks still read.
    """
    name = schedules(kind, size, nbytes, limits, hierarchy, wide)[0]
    if shared_arrays and (kind, "zero_copy") in BUILDERS and not (kind == "all_to_all" and in_place):
        name = "zero_copy"
    return build_plan(kind, name, rank, size, nbytes, itemsize, root, limits, hierarchy, wide)


def seconds(kind: str, size: int, nbytes: int, threads: int) -> float:
    """Predicted seconds of a large collective, if memory bandwidth grows with the number of threads.

    The sum of its bytes at the speed of one thread, the exposed synchronisations, and the time to wake the helpers.
    """
    costs, shares = DEFAULT_LIMITS.costs, cut(kind, size, nbytes, threads, 0)
    part = nbytes if shares is None else shares.nbytes
    limits = Limits() if shares is None else SHARE_LIMITS
    plans = [choose(kind, rank, size, part, limits=limits) for rank in range(size)]
    touched = max(cost(plan).touched_nbytes for plan in plans)
    exposed = (2 if plans[0].algorithm in ("two_shot", "sliced") else 1) * costs.latency
    return touched / costs.bytes_per_second + exposed + waking(threads, costs)


class Formula(NamedTuple):
    """Bytes touched by all ranks together, in place: as text, and in units of the vector s or block m."""

    text: str
    units: Callable[[int], int]


# The tests hold every plan to these, for p = 2..1024.
FORMULAS: dict[tuple[str, str], Formula] = {
    ("all_reduce", "one_shot"): Formula("p(p+3)s", lambda p: p * (p + 3)),
    ("all_reduce", "two_shot"): Formula("(5p-2)s", lambda p: 5 * p - 2),
    ("all_reduce", "exchange"): Formula("(6p-4)s", lambda p: 6 * p - 4),
    ("all_reduce", "zero_copy"): Formula("2ps", lambda p: 2 * p),
    ("all_reduce", "zero_copy_shared"): Formula("(p+1)s", lambda p: p + 1),
    ("reduce", "flat"): Formula("(3p-1)s", lambda p: 3 * p - 1),
    ("reduce", "sliced"): Formula("(3p+1)s", lambda p: 3 * p + 1),
    ("reduce", "zero_copy"): Formula("(p+1)s", lambda p: p + 1),
    ("reduce_scatter", "staged"): Formula("(3p-1)s", lambda p: 3 * p - 1),
    ("reduce_scatter", "zero_copy"): Formula("(p+1)s", lambda p: p + 1),
    ("scan", "staged"): Formula("(p²+7p-4)s/2", lambda p: (p * p + 7 * p - 4) // 2),
    ("exscan", "staged"): Formula("(p²+5p-6)s/2", lambda p: (p * p + 5 * p - 6) // 2),
    ("broadcast", "staged"): Formula("2ps", lambda p: 2 * p),
    ("broadcast", "zero_copy"): Formula("2(p-1)s", lambda p: 2 * (p - 1)),
    ("all_gather", "staged"): Formula("2p²m", lambda p: 2 * p * p),
    ("all_gather", "zero_copy"): Formula("2p(p-1)m", lambda p: 2 * p * (p - 1)),
    ("all_gather", "zero_copy_shared"): Formula("2pm", lambda p: 2 * p),
    ("gather", "staged"): Formula("4(p-1)m", lambda p: 4 * (p - 1)),
    ("gather", "zero_copy"): Formula("2(p-1)m", lambda p: 2 * (p - 1)),
    ("scatter", "staged"): Formula("4(p-1)m", lambda p: 4 * (p - 1)),
    ("scatter", "zero_copy"): Formula("2(p-1)m", lambda p: 2 * (p - 1)),
    ("all_to_all", "staged"): Formula("4p(p-1)m", lambda p: 4 * p * (p - 1)),
    ("all_to_all", "zero_copy"): Formula("2p²m (out of place)", lambda p: 2 * p * p),
}


class Example(NamedTuple):
    """A collective of a size at which all slices are equal, in whole cache lines, and everything fits one round."""

    kind: str
    algorithm: str
    size: int

    @property
    def nbytes(self) -> int:
        """The builder's argument: the vector, or the block."""
        p = self.size
        return LINE * p * (p - 1) // (p if self.kind == "reduce_scatter" else 1)

    @property
    def unit(self) -> int:
        """Bytes of s or m."""
        return LINE * self.size * (self.size - 1)

    @property
    def in_place(self) -> bool:
        """Whether it is counted in place: always, except where the algorithm has no in-place form."""
        return (self.kind, self.algorithm) != ("all_to_all", "zero_copy")

    def plan(self, rank: int) -> Plan:
        """One rank's plan; the root, if any, is rank 0."""
        limits = Limits(slot_nbytes=max(2 * LINE, self.unit * self.size))
        return BUILDERS[self.kind, self.algorithm](rank, self.size, self.nbytes, 1, limits)

    def whole(self) -> Cost:
        """The cost of all ranks together. All ranks but the root cost the same; scans are counted rank by rank."""
        if self.kind in ("scan", "exscan"):
            return total(map(self.plan, range(self.size)), in_place=True)
        rooted = self.kind in ROOTED
        first, other = (cost(self.plan(r), in_place=self.in_place) for r in (0, self.size - 1))
        others = self.size - 1
        sums = [a + others * b if rooted else self.size * b for a, b in zip(first, other, strict=True)]
        return Cost(*sums)

    def busiest(self) -> int:
        """The bytes of the rank that touches the most."""
        ranks = {0, 1, self.size - 2, self.size - 1}  # the last but one is the busiest of a scan
        return max(cost(self.plan(r), in_place=self.in_place).touched_nbytes for r in ranks)

    def crossed(self) -> int:
        """Bytes between domains if the first half of the ranks is in one domain and the second half in another."""
        domains = [int(2 * r >= self.size) for r in range(self.size)]
        return total(map(self.plan, range(self.size)), in_place=self.in_place, domains=domains).crossed_nbytes


def _rows(header: list[str], rows: Iterable[Iterable[object]]) -> str:
    lines: list[Iterable[object]] = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _units(nbytes: int, unit: int) -> str:
    """``nbytes`` in units, with at most two decimals."""
    return f"{float(Fraction(nbytes, unit)):.2f}".rstrip("0").rstrip(".")


def cost_table() -> str:
    """Bytes touched by all ranks together and by the busiest one, in units of s or m; dependent synchronisations."""

    def rows() -> Iterable[Iterable[object]]:
        for (kind, algorithm), formula in FORMULAS.items():
            examples = [Example(kind, algorithm, p) for p in SIZES]
            eight = Example(kind, algorithm, 8)
            syncs = dependent_syncs([eight.plan(r) for r in range(8)])
            touched = [_units(e.whole().touched_nbytes, e.unit) for e in examples]
            yield kind, algorithm, formula.text, *touched, _units(eight.busiest(), eight.unit), syncs

    sizes = [f"p={p}" for p in SIZES]
    return _rows(["collective", "algorithm", "touched", *sizes, "busiest rank, p=8", "syncs"], rows())


def crossing_table() -> str:
    """Bytes between two domains of p/2 ranks each, in units of s or m."""

    def rows() -> Iterable[Iterable[object]]:
        for kind, algorithm in FORMULAS:
            examples = [Example(kind, algorithm, p) for p in (2, 8, 64)]
            yield kind, algorithm, *(_units(e.crossed(), e.unit) for e in examples)

    return _rows(["collective", "algorithm", "p=2", "p=8", "p=64"], rows())


def threads_table() -> str:
    """Predicted speed-up of an all-reduce by several threads per rank; "-" where it is not split."""

    def rows() -> Iterable[Iterable[object]]:
        for size in (2, 8):
            for mib in (1, 4, 16, 64):
                n = mib << 20
                alone = seconds("all_reduce", size, n, 1)
                split = [(t, alone / seconds("all_reduce", size, n, t)) for t in (2, 4, 8, 16)]
                costs = DEFAULT_LIMITS.costs
                yield size, f"{mib} MiB", *(f"{s:.1f}" if n >= split_limit(t, costs) else "-" for t, s in split)

    return _rows(["ranks", "all-reduce of", *(f"{t} threads" for t in (2, 4, 8, 16))], rows())
