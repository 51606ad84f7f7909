"""Show a plan, the cost tables of the documentation, or predicted times; needs shmring installed."""

from __future__ import annotations

import argparse

from plan_costs import choose, cost_table, crossing_table, threads_table
from plan_predictions import SIZES, plot, predictions, table

from shmring.plan.choose import KINDS
from shmring.plan.cost import cost
from shmring.plan.limits import Limits


def nbytes(text: str) -> int:
    """A number of bytes, with K, M or G for powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(float(text[:-1]) * factor) if factor else int(text)


def main(arguments: list[str] | None = None) -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(prog="python tools/plan_tables.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="the steps of one rank, and what they cost")
    show.add_argument("kind", choices=KINDS)
    show.add_argument("--size", type=int, default=4, help="number of ranks")
    show.add_argument("--rank", type=int, default=0)
    show.add_argument("--nbytes", type=nbytes, default=1 << 20, help="vector or block, e.g. 64K")
    show.add_argument("--itemsize", type=int, default=4)
    show.add_argument("--root", type=int, default=0)
    show.add_argument("--slot-nbytes", type=nbytes, default=Limits().slot_nbytes)
    show.add_argument("--shared-arrays", action="store_true", help="on shared arrays")
    commands.add_parser("costs", help="the tables of docs/maintainers/algorithms.md")
    guess = commands.add_parser("predict", help="times of flat and hierarchical plans on modelled machines")
    guess.add_argument("--size", type=int, default=64, help="number of ranks")
    guess.add_argument("--sizes", type=nbytes, nargs="+", default=SIZES, help="bytes of the vector, or of all blocks")
    guess.add_argument(
        "--wide",
        type=int,
        default=1,
        help="reductions only, with prefixes this many times as wide as elements: 2 for 16-bit sums",
    )
    guess.add_argument("--plot", metavar="FILE", help="draw the times into FILE")
    a = parser.parse_args(arguments)
    if a.command == "predict":
        found = predictions(a.size, a.sizes, a.wide)
        print(table(found))
        if a.plot:
            plot(found, a.plot)
        return
    if a.command == "costs":
        print(cost_table(), crossing_table(), threads_table(), sep="\n\n")
        return
    if not (0 <= a.rank < a.size and 0 <= a.root < a.size):
        parser.error(f"rank and root must lie in 0..{a.size - 1}")
    limits = Limits(slot_nbytes=a.slot_nbytes)
    plan = choose(
        a.kind, a.rank, a.size, a.nbytes, a.itemsize, root=a.root, limits=limits, shared_arrays=a.shared_arrays
    )
    c = cost(plan)
    print(plan)
    print(
        f"reads {c.read_nbytes}, writes {c.written_nbytes} bytes, {c.staged_nbytes} of them into slots; "
        f"{c.awaits} awaits, {c.claims} claims, {c.publishes} publishes"
    )


if __name__ == "__main__":
    main()
