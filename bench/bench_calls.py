"""The overhead of a call: of the method, of a persistent plan, asynchronous, and coalesced.

One number is the mean time of one call in a loop of two ranks, each pinned to a processor of its own; the slower rank
counts. The ways of one question take turns in slices of milliseconds, so that a slower spell of the machine, or
processors that it moves apart, meet all alike; compare the ratios. `python bench/bench_calls.py [ranks]` prints the
table: median and quartiles over the slices, and the ratio to the first way of the group.
"""

import os
import platform
import statistics
import sys
import time

import numpy as np
import pytest

import shmring

SLICES = 60


def small(comm):
    """An all-reduce of 8 bytes, by every kind of call."""
    x = np.zeros(1)
    plan = comm.plan("all_reduce", x)
    return {
        "all_reduce": (lambda: comm.all_reduce(x), 2000),
        "plan": (plan, 2000),
        "async_op, wait": (lambda: comm.all_reduce(x, async_op=True).wait(), 40),
        "plan.start, wait": (lambda: plan.start().wait(), 40),
    }


def callables(comm):
    """A sum of 1 KiB, by a kernel and by functions."""
    x = np.zeros(256, np.float32)
    return {
        "op='sum'": (lambda: comm.all_reduce(x), 1000),
        "op=np.add": (lambda: comm.all_reduce(x, op=np.add), 1000),
        "op=np.hypot": (lambda: comm.all_reduce(x, op=np.hypot), 200),
        "op=lambda": (lambda: comm.all_reduce(x, op=lambda a, b: a + b), 200),
    }


def many(comm, count, nbytes):
    """``count`` arrays, one by one and coalesced."""
    xs = [np.zeros(nbytes // 4, np.float32) for _ in range(count)]
    plan = comm.plan("all_reduce_many", xs)
    return {
        "one by one": (lambda: [comm.all_reduce(x) for x in xs], 4),
        "all_reduce_many": (lambda: comm.all_reduce_many(xs), 4),
        "plan of it": (plan, 4),
    }


GROUPS = {
    "all_reduce of 8 bytes": (small,),
    "all_reduce of 1 KiB by callables": (callables,),
    "100 arrays of 8 bytes": (many, 100, 8),
    "100 arrays of 1 KiB": (many, 100, 1024),
    "100 arrays of 4 KiB": (many, 100, 4096),
    "50 arrays of 16 KiB": (many, 50, 16384),
}


def measure(comm, make, *args):
    """Nanoseconds per call on one rank, for each kind of call and slice."""
    if comm.size <= len(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[comm.rank]})
    ways = make(comm, *args)
    taken = {way: [] for way in ways}
    for _ in range(SLICES):
        for way, (call, times) in ways.items():
            comm.barrier()
            begin = time.perf_counter_ns()
            for _ in range(times):
                call()
            taken[way].append((time.perf_counter_ns() - begin) / times)
    return taken


def slowest(group, size=2):
    """The same for the slowest rank of each slice."""
    ranks = shmring.spawn(measure, size, args=GROUPS[group])
    return {way: [max(slices) for slices in zip(*(rank[way] for rank in ranks), strict=True)] for way in ranks[0]}


@pytest.mark.parametrize("group", GROUPS)
def test_ways_of_a_call(benchmark, group):
    """One round measures all calls of one group; ``extra_info`` has the median nanoseconds of each."""
    found = {}
    benchmark.group = "calls"
    benchmark.pedantic(lambda: found.update(slowest(group)), rounds=1)
    benchmark.extra_info.update({way: statistics.median(slices) for way, slices in found.items()})


def main():
    """Print the table."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    print(f"python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}")
    print(f"{size} ranks; us per call")
    for group in GROUPS:
        print(f"\n{group:<34}{'median':>10}{'quartiles':>20}{'ratio':>8}")
        first = None
        for way, slices in slowest(group, size).items():
            low, middle, high = (ns / 1000 for ns in statistics.quantiles(slices, n=4))
            first = first or middle
            print(f"  {way:<32}{middle:>10.3f}{low:>11.3f}-{high:<8.3f}{middle / first:>8.2f}")


if __name__ == "__main__":
    sys.exit(main())
