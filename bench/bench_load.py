"""Latency under load: a small all-reduce while other processes use the processors.

    python -m pytest bench/bench_load.py
    python -m pytest bench/bench_load.py --benchmark-disable     once each, to see that it runs

Loads: ``nothing``; ``copies``, a process for each processor that copies memory without end; ``async``, large
all-reduces of the same ranks that are under way on another communicator. Each call is timed by itself, Python to
Python: ``us`` in the extra information has the median, the 99th percentile and the longest of rank 0. `bench_busy` has
processes that compute.
"""

import contextlib
import os
import signal
import time

import numpy as np
import pytest
from bench_collectives import follow as follow_rounds
from bench_collectives import round_trip_us
from sides import ranks
from turns import PROCESSORS

CALLS = 200  # in a round
LARGE_NBYTES = 16 << 20


def copy():
    """Run until killed."""
    x, y = np.ones(64 << 20, np.uint8), np.ones(64 << 20, np.uint8)
    while True:
        np.copyto(y, x)


@contextlib.contextmanager
def loaded_by(work):
    """Run ``work`` in one process per processor; None: no load."""
    children = []
    try:
        for cpu in PROCESSORS if work else []:
            child = os.fork()
            if child == 0:
                os.sched_setaffinity(0, {cpu})
                work()
            children.append(child)
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


LOADS = {"nothing": None, "copies": copy, "async": None}


def play(comm, other, is_async):
    """One round on one rank: the nanoseconds of each call."""
    x, large = np.ones(256, np.float32), np.ones(LARGE_NBYTES // 4, np.float32)
    work, taken = None, []
    comm.barrier()
    for _ in range(CALLS):
        if is_async and work is None:
            work = other.all_reduce(large, op="max", async_op=True)
        start = time.perf_counter_ns()
        comm.all_reduce(x, op="max")
        taken.append(time.perf_counter_ns() - start)
        if work is not None and comm.all_reduce(np.array([work.done()]), op="min")[0]:
            work = None
    if work is not None:
        work.wait()
    comm.barrier()
    return taken


def follow(comm):
    """The other rank: execute the rounds that rank 0 announces, until the end."""
    with comm, comm.dup() as other:
        follow_rounds(comm.dup())
        while True:
            order = np.zeros(2, np.int64)
            comm.broadcast(order)
            if order[0] == 0:
                return
            play(comm, other, bool(order[1]))


@pytest.mark.parametrize("load", LOADS)
def test_small_all_reduce_under_load(benchmark, load):
    """Rounds of calls on two pinned ranks."""
    with ranks(follow) as comm, comm.dup() as other:
        with comm.dup() as probe:
            trip_us = round_trip_us(probe)
            probe.broadcast(np.zeros(3, np.int64))
        taken = []

        def lead():
            comm.broadcast(np.array([1, load == "async"]))
            taken.extend(play(comm, other, load == "async"))

        with loaded_by(LOADS[load]):
            benchmark.pedantic(lead, rounds=15, warmup_rounds=2)
        comm.broadcast(np.zeros(2, np.int64))
    benchmark.group = "all_reduce, 1024 bytes, under load"
    median, p99, longest = (round(float(np.percentile(taken, q)) / 1e3, 2) for q in (50, 99, 100))
    benchmark.extra_info.update(round_trip_us=round(trip_us, 3), us={"median": median, "p99": p99, "longest": longest})
