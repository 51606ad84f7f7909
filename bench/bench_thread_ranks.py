"""Ranks as threads beside ranks as processes, with private and with shared arrays: microseconds per all-reduce.

    python -m pytest bench/bench_thread_ranks.py

In a free-threaded Python. All are pinned alike. One figure is the best of several batches on rank 0; ``round_trip_us``
beside it is what two barriers took.
"""

import numpy as np
import pytest
from turns import compare, pin

import shmring
from shmring.core.sync.turn import IS_FREE_THREADED

SIZES = [8, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20]


def measure(comm, nbytes, kind):
    """Microseconds of an all-reduce, and of two barriers."""
    pin(comm.rank)  # the calling thread
    x = comm.empty(nbytes // 4, np.float32) if kind == "processes, shared" else np.zeros(nbytes // 4, np.float32)
    found = compare(comm, {kind: lambda: comm.all_reduce(x)}, cycles=7)
    return min(found.us[kind]), min(found.trip_us)


@pytest.mark.skipif(not IS_FREE_THREADED, reason="ranks are threads only where Python has no GIL")
@pytest.mark.parametrize("kind", ["threads", "processes", "processes, shared"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_all_reduce_of_two_ranks(benchmark, nbytes, kind):
    how = {"threads": True} if kind == "threads" else {"start_method": "fork"}
    (us, round_trip_us), _ = benchmark.pedantic(
        lambda: shmring.spawn(measure, 2, (nbytes, kind), **how), rounds=1, iterations=1
    )
    benchmark.extra_info.update(us=round(us, 3), round_trip_us=round(round_trip_us, 3))
    print(f"\n{kind:17} {nbytes:9} B  {us:9.2f} us  (two barriers {round_trip_us:.2f} us)")
