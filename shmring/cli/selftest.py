"""Check that shmring works on this machine and in this container, in a few seconds. Needs only shmring.

The exit status is 1 if a check failed. `python -m shmring.selftest` is the same.
"""

from __future__ import annotations

import argparse
import json
import os

from shmring.core.placement.topology_file import topology
from shmring.selftest import Outcome, run_checks
from shmring.version import __version__

from .arguments import ranks, whole_number

SLOW_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring selftest``."""
    parser.add_argument("-n", "--ranks", type=ranks, default=2, metavar="N", help="number of ranks (default: 2)")
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of what is sent (default: 0)")
    parser.add_argument("--json", action="store_true", help="write one JSON object")


def main(args: argparse.Namespace) -> int:
    """Run the checks and print what each found."""
    if not args.json:
        print(f"shmring {__version__}, {args.ranks} ranks, seed {args.seed}\n", flush=True)
    outcomes = []
    for outcome in run_checks(args.ranks, args.seed):
        outcomes.append(outcome)
        if not args.json:
            print(f"  {'ok' if outcome.passed else 'FAILED':<7} {outcome.name:<27} {outcome.text}", flush=True)
            if outcome.remedy:
                print(f"{'':10}{'':27} {outcome.remedy}", flush=True)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if args.json:
        facts = {"version": __version__, "passed": not failed, "checks": [x._asdict() for x in outcomes]}
        print(json.dumps(facts, indent=2))
    else:
        print(f"\n{len(failed)} of {len(outcomes)} checks failed" if failed else f"\nall {len(outcomes)} checks passed")
        if sum(outcome.seconds for outcome in outcomes) > SLOW_S:
            print(_slow_text(outcomes))
    return 1 if failed else 0


def _slow_text(outcomes: list[Outcome]) -> str:
    """Which checks took long, and whether other programs use the processors."""
    longest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:3]
    parts = ", ".join(f"{outcome.name} {outcome.seconds:.1f} s" for outcome in longest if outcome.seconds >= 0.5)
    total = sum(outcome.seconds for outcome in outcomes)
    return (
        f"slow: {total:.0f} s: {parts}; the load average of the last minute is {os.getloadavg()[0]:.1f}, "
        f"on {topology().usable:g} usable processors"
    )
