"""The overhead of a call: of the method, of a persistent plan, asynchronous, coalesced, and of the C table.

One number is the mean time of one call in a loop of two ranks, each pinned to a processor of its own; the slower rank
counts. The ways of one question take turns in slices of milliseconds, so that a slower spell of the machine, or
processors that it moves apart, meet all alike; compare the ratios.

    python bench/bench_calls.py
    python bench/bench_calls.py --ranks 1

prints the tables: median and quartiles over the slices, the ratio to the first way of the group, and the difference.
"""

import argparse
import platform

import numpy as np
import pytest
from sides import print_table
from support import compiled
from turns import compare, loop_of, pin

import shmring

SLICES = 60


def small(comm):
    """An all-reduce of 8 bytes, by every kind of call."""
    x = np.zeros(1)
    plan = comm.plan("all_reduce", x)
    return {
        "all_reduce": loop_of(lambda: comm.all_reduce(x)),
        "plan": loop_of(plan),
        "async_op, wait": loop_of(lambda: comm.all_reduce(x, async_op=True).wait()),
        "plan.start, wait": loop_of(lambda: plan.start().wait()),
    }


def from_c(comm):
    """The same from C, beside the method and the engine's own time: one request, filled in once, in one turn."""
    loops = compiled.load("capi_loops").Loops(comm)
    x = np.zeros(1)

    def checked(loop):
        def whole(times):
            assert loop(times) == 0

        return whole

    return {
        "engine alone": checked(loops.own),
        "C plan": checked(loops.plan),
        "C call": checked(loops.call),
        "Python plan": loop_of(comm.plan("all_reduce", x)),
        "Python call": loop_of(lambda: comm.all_reduce(x)),
    }


def callables(comm):
    """A sum of 1 KiB, by a kernel and by functions."""
    x = np.zeros(256, np.float32)
    return {
        "op='sum'": loop_of(lambda: comm.all_reduce(x)),
        "op=np.add": loop_of(lambda: comm.all_reduce(x, op=np.add)),
        "op=np.hypot": loop_of(lambda: comm.all_reduce(x, op=np.hypot)),
        "op=lambda": loop_of(lambda: comm.all_reduce(x, op=lambda a, b: a + b)),
    }


def many(comm, count, nbytes):
    """``count`` arrays, one by one and coalesced."""
    xs = [np.zeros(nbytes // 4, np.float32) for _ in range(count)]
    return {
        "one by one": loop_of(lambda: [comm.all_reduce(x) for x in xs]),
        "all_reduce_many": loop_of(lambda: comm.all_reduce_many(xs)),
        "plan of it": loop_of(comm.plan("all_reduce_many", xs)),
    }


GROUPS = {
    "all_reduce of 8 bytes": (small,),
    "all_reduce of 8 bytes from C": (from_c,),
    "all_reduce of 1 KiB by callables": (callables,),
    "100 arrays of 8 bytes": (many, 100, 8),
    "100 arrays of 1 KiB": (many, 100, 1024),
    "100 arrays of 4 KiB": (many, 100, 4096),
    "50 arrays of 16 KiB": (many, 50, 16384),
}


def measure(comm, group, cycles):
    """Compare the ways of one group."""
    pin(comm.rank)
    make, *args = GROUPS[group]
    return compare(comm, {}, loops=make(comm, *args), seconds=60, cycles=cycles, slice_s=0.004)


def ranks_compare(group, size=2, cycles=SLICES):
    """What rank 0 finds."""
    compiled.load("capi_loops")  # built before ranks load it
    return shmring.spawn(measure, size, args=(group, cycles))[0]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("group", GROUPS)
def test_ways_of_a_call(benchmark, group, size):
    """One round measures all calls of one group; ``extra_info`` has the median microseconds of each."""
    cycles = SLICES if benchmark.enabled else 1
    benchmark.group = f"calls, {size} ranks"
    found = benchmark.pedantic(ranks_compare, args=(group, size, cycles), rounds=1)
    benchmark.extra_info.update({name: found.median(name) for name in found.us})


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cycles", type=int, default=SLICES, help="of each group")
    args = parser.parse_args()
    print(f"python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}")
    print(f"{args.ranks} ranks; microseconds per call")
    for group in GROUPS:
        print_table(group, ranks_compare(group, args.ranks, args.cycles))


if __name__ == "__main__":
    main()
