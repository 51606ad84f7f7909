"""Collectives from Python to Python: time per call by kind, size, number of ranks and of threads of each.

    python -m pytest bench/bench_collectives.py
    python -m pytest bench/bench_collectives.py --benchmark-disable     once each, to see that it runs

One round is a barrier, some calls in a row, and a barrier, so it ends when the slowest rank has ended. Ranks are
pinned, one processor a thread as far as there are enough. How far apart two processors are decides more than anything
else, and on a virtual machine it changes while the program runs: ``round_trip_us`` beside each figure is what two
barriers took between the ranks just before it. That answers are right is for ``tests/``.
"""

import functools
import time

import numpy as np
import pytest
from sides import ranks

import shmring


def share(comm, x):
    """The part of ``x`` of this rank, for calls in place."""
    return x.reshape(comm.size, -1)[comm.rank]


CALLS = {
    "all_reduce": lambda comm, x, y: comm.all_reduce(x, op="max"),
    "broadcast": lambda comm, x, y: comm.broadcast(x),
    "reduce": lambda comm, x, y: comm.reduce(x, op="max"),
    "all_gather": lambda comm, x, y: comm.all_gather(share(comm, x), x),
    "reduce_scatter": lambda comm, x, y: comm.reduce_scatter(x.reshape(comm.size, -1), share(comm, y), op="max"),
    "all_to_all": lambda comm, x, y: comm.all_to_all(x.reshape(comm.size, -1), y),
    "gather": lambda comm, x, y: comm.gather(share(comm, x), y),
    "barrier": lambda comm, x, y: comm.barrier(),
}
KINDS = list(CALLS)
SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20]


def calls_per_round(nbytes):
    """Number of calls per round: enough for the clock, few for large sizes."""
    return max(8, min(500, (8 << 20) // (nbytes + 4096)))


@functools.cache
def arrays(nbytes, size):
    """Two arrays, made once: page faults would take longer than the calls."""
    return np.ones(max(size, nbytes // 4), np.float32), np.ones(max(size, nbytes // 4), np.float32)


def play(comm, kind, nbytes, times):
    """One round on one rank."""
    x, y = arrays(nbytes, comm.size)
    call = CALLS[kind]
    comm.barrier()
    for _ in range(times):
        call(comm, x, y)
    comm.barrier()


def follow(comm):
    """The other ranks: execute the rounds that rank 0 announces, until the end."""
    while True:
        order = np.zeros(3, np.int64)
        comm.broadcast(order)
        if order[2] == 0:
            comm.close()
            return
        play(comm, KINDS[order[0]], int(order[1]), int(order[2]))


@pytest.fixture(scope="module", params=[(2, 1), (4, 1), (2, 2)], ids=lambda p: f"{p[0]}-ranks-{p[1]}-threads")
def comm(request):
    """Rank 0; the others are forked and follow."""
    with ranks(follow, *request.param) as comm:
        yield comm
        comm.broadcast(np.zeros(3, np.int64))


def lead(comm, kind, nbytes, times):
    """One round on rank 0, the others following."""
    comm.broadcast(np.array([KINDS.index(kind), nbytes, times]))
    play(comm, kind, nbytes, times)


def round_trip_us(comm):
    """Microseconds of two barriers: a round trip between the ranks."""
    start = time.perf_counter()
    lead(comm, "barrier", 8, 4000)
    return 1e6 * (time.perf_counter() - start) / 2000


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_collective(comm, benchmark, kind, nbytes):
    """Microseconds a call: ``us_each`` in the extra information."""
    if kind == "barrier" and nbytes != SIZES[0]:
        pytest.skip("a barrier has no size")
    times = calls_per_round(nbytes)
    benchmark.group = f"{kind}, {nbytes} bytes"
    benchmark.extra_info.update(
        ranks=comm.size,
        threads=comm.stats()["threads"],
        nbytes=nbytes,
        kernel=shmring.kernels()["chosen"],
        round_trip_us=round(round_trip_us(comm), 3),
    )
    benchmark.pedantic(lead, args=(comm, kind, nbytes, times), rounds=15, warmup_rounds=2)
    if benchmark.stats:
        benchmark.extra_info["us_each"] = 1e6 * benchmark.stats.stats.median / times
