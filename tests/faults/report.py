"""The whole fault grid, and how long survivors took to notice: `python tests/faults/report.py --descents N --inside`.

Prints figures; asserts only what the tests assert.
``--inside`` runs the injection points, in a build of their own, instead of the moments around calls.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import fault_points  # noqa: E402
from fault_build import fault_build  # noqa: E402
from fault_calls import CALLS  # noqa: E402
from fault_grid import MOMENTS, cells, deal, play  # noqa: E402
from support.harness import close_nursery, nursery_with  # noqa: E402


def main() -> int:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--descents", type=int, help="at most so many of each call, each of three cases; else all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true")
    options = parser.parse_args()
    moments = fault_points.MOMENTS if options.inside else MOMENTS
    taken: dict[tuple, list[float]] = defaultdict(list)
    counts: Counter = Counter()
    started = time.monotonic()
    with nursery_with(fault_build()) if options.inside else contextlib.nullcontext():
        for call in CALLS:
            dice = random.Random(f"{options.seed} {call}{' inside' if options.inside else ''}")
            for cases in deal(cells(call, *moments[call]), dice)[: options.descents]:
                try:
                    found = play(cases)
                except AssertionError as error:
                    counts["failed"] += 1
                    print(f"FAILED {call}: {error}", flush=True)
                    continue
                counts["cases"] += len(cases)
                counts["survivors"] += len(found)
                counts["missed its moment"] += sum(not in_place for *_, in_place in found)
                for case, ranks, seconds, _ in found:
                    if seconds is not None and seconds >= 0:
                        taken[case.death, case.wait, ranks].append(1e3 * seconds)
    close_nursery()
    print(f"seed {options.seed}, {time.monotonic() - started:.0f} s: {dict(counts)}")
    print("| failure | peers | ranks | survivors | min ms | median ms | 99 % | max ms |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for (death, wait, ranks), ms in sorted(taken.items()):
        ms.sort()
        last = ms[min(len(ms) - 1, int(0.99 * len(ms)))]
        print(
            f"| {death} | {wait} | {ranks} | {len(ms)} | {ms[0]:.2f} | {statistics.median(ms):.2f} | {last:.2f} | "
            f"{ms[-1]:.2f} |"
        )
    return bool(counts["failed"])


if __name__ == "__main__":
    sys.exit(main())
