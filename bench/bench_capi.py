"""The overhead of a call from C: an all-reduce of 8 bytes by the C table, beside the method and the engine alone.

One number is the mean time of one call in a loop on ranks that are pinned to a processor each; the slowest rank counts.
The ways take turns in slices of milliseconds, so that a slower spell of the machine meets all alike; compare the
differences to the engine's own time: one request, filled in once, in one turn.
`PYTHONPATH=tests python bench/bench_capi.py [ranks]` prints the table.
"""

import os
import platform
import statistics
import sys
import time

import numpy as np
import pytest
from support import compiled

import shmring

SLICES, TIMES = 60, 2000


def repeat(call):
    """A loop of calls in Python."""

    def loop(times):
        for _ in range(times):
            call()
        return 0

    return loop


def ways_of(comm):
    """Loops by name, each of so many all-reduces of 8 bytes."""
    loops = compiled.load("capi_loops").Loops(comm)
    x = np.zeros(1)
    return {
        "engine alone": loops.own,
        "C plan": loops.plan,
        "C call": loops.call,
        "Python plan": repeat(comm.plan("all_reduce", x)),
        "Python call": repeat(lambda: comm.all_reduce(x)),
    }


def measure(comm):
    """Nanoseconds per call on one rank, for each way and slice."""
    if comm.size <= len(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[comm.rank]})
    ways = ways_of(comm)
    taken = {way: [] for way in ways}
    for _ in range(SLICES):
        for way, loop in ways.items():
            comm.barrier()
            begin = time.perf_counter_ns()
            failures = loop(TIMES)
            taken[way].append((time.perf_counter_ns() - begin) / TIMES)
            assert failures == 0
    return taken


def slowest(size=2):
    """The same for the slowest rank of each slice."""
    compiled.load("capi_loops")  # built before ranks load it
    ranks = shmring.spawn(measure, size)
    return {way: [max(slices) for slices in zip(*(rank[way] for rank in ranks), strict=True)] for way in ranks[0]}


@pytest.mark.parametrize("size", [1, 2])
def test_ways_of_a_call_from_c(benchmark, size):
    """One round measures all ways; ``extra_info`` has the median nanoseconds of each. One rank: no waits at all."""
    found = {}
    benchmark.group = "C table"
    benchmark.pedantic(lambda: found.update(slowest(size)), rounds=1)
    benchmark.extra_info.update({way: statistics.median(slices) for way, slices in found.items()})


def main():
    """Print the table."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    print(f"python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}")
    print(f"{size} ranks, all-reduce of 8 bytes; ns per call\n")
    print(f"{'':<20}{'median':>10}{'quartiles':>20}{'above the engine':>20}")
    first = None
    for way, slices in slowest(size).items():
        low, middle, high = statistics.quantiles(slices, n=4)
        first = first or middle
        print(f"{way:<20}{middle:>10.0f}{low:>12.0f}-{high:<7.0f}{middle - first:>20.0f}")


if __name__ == "__main__":
    sys.exit(main())
