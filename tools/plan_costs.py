"""The cost table of ``docs/maintainers/algorithms.md``, counted from plans, and the steps of any plan.

python tools/plan_costs.py
python tools/plan_costs.py show all_reduce --size 4 --rank 0 --nbytes 1M
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from shmring.collectives.plan.choose import BUILDERS, PLANNED, ROOTED, build_plan, schedules
from shmring.collectives.plan.cost import Cost, cost, dependent_syncs
from shmring.collectives.plan.hierarchy import Hierarchy
from shmring.collectives.plan.limits import DEFAULT_LIMITS, LINE, Limits
from shmring.collectives.plan.steps import Plan

SIZES = (2, 8, 1024)


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


# ---- the command line ----


def shown(a: argparse.Namespace) -> str:
    """The steps of one rank, and what they cost."""
    limits = Limits(slot_nbytes=a.slot_nbytes)
    plan = choose(
        a.kind, a.rank, a.size, a.nbytes, a.itemsize, root=a.root, limits=limits, shared_arrays=a.shared_arrays
    )
    c = cost(plan)
    return (
        f"{plan}\nreads {c.read_nbytes}, writes {c.written_nbytes} bytes, {c.staged_nbytes} of them into slots; "
        f"{c.awaits} awaits, {c.claims} claims, {c.publishes} publishes"
    )


def nbytes(text: str) -> int:
    """A number of bytes, with K, M or G for powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(float(text[:-1]) * factor) if factor else int(text)


def main(arguments: list[str] | None = None) -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    show = commands.add_parser("show", help="the steps of one rank, and what they cost")
    show.add_argument("kind", choices=PLANNED)
    show.add_argument("--size", type=int, default=4, help="number of ranks")
    show.add_argument("--rank", type=int, default=0)
    show.add_argument("--nbytes", type=nbytes, default=1 << 20, help="vector or block, e.g. 64K")
    show.add_argument("--itemsize", type=int, default=4)
    show.add_argument("--root", type=int, default=0)
    show.add_argument("--slot-nbytes", type=nbytes, default=Limits().slot_nbytes)
    show.add_argument("--shared-arrays", action="store_true", help="on shared arrays")
    a = parser.parse_args(arguments)
    if a.command == "show" and not (0 <= a.rank < a.size and 0 <= a.root < a.size):
        parser.error(f"rank and root must lie in 0..{a.size - 1}")
    print(shown(a) if a.command == "show" else cost_table())


if __name__ == "__main__":
    main()
