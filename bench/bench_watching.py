"""What a watcher costs the ranks that it watches: 8 byte all-reduces on two pinned ranks, watched and not, in turn.

    python -m pytest bench/bench_watching.py
    python -m pytest bench/bench_watching.py --benchmark-disable     once, to see that it runs

The watcher is ``shmring top`` at ten looks a second, stopped by a signal in every other slice. ``us`` in the extra
information has the median time of a call in both kinds of slices, ``ratio`` their quotient.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
import uuid

import numpy as np
from bench_collectives import follow, lead, pin, round_trip_us

import shmring

TIMES = 20000  # calls in a slice
WATCHER = [sys.executable, "-m", "shmring", "top", "--json", "--interval", "0.1"]


def test_watched_and_unwatched_calls(benchmark):
    """Slices of both kinds in turn."""
    times = TIMES if benchmark.enabled else 100
    session, affinity = uuid.uuid4().hex, os.sched_getaffinity(0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pin(1, 1)
            follow(shmring.init(rank=1, size=2, session=session))
            status = 0
        finally:
            os._exit(status)
    pin(0, 1)
    taken = {"watched": [], "unwatched": []}

    def play_both():
        for kind, order in (("watched", signal.SIGCONT), ("unwatched", signal.SIGSTOP)):
            watcher.send_signal(order)
            started = time.perf_counter()
            lead(comm, "all_reduce", 8, times)
            taken[kind].append(1e6 * (time.perf_counter() - started) / times)

    free = {"stdout": subprocess.DEVNULL, "preexec_fn": lambda: os.sched_setaffinity(0, affinity)}
    with subprocess.Popen(WATCHER, **free) as watcher:
        with shmring.init(rank=0, size=2, session=session) as comm:
            trip_us = round_trip_us(comm)
            benchmark.pedantic(play_both, rounds=15, warmup_rounds=2)
            comm.broadcast(np.zeros(3, np.int64))
        watcher.kill()
    assert os.waitpid(child, 0)[1] == 0
    os.sched_setaffinity(0, affinity)
    us = {kind: statistics.median(each) for kind, each in taken.items()}
    benchmark.group = "all_reduce, 8 bytes"
    benchmark.extra_info.update(round_trip_us=round(trip_us, 3), us=us, ratio=us["watched"] / us["unwatched"])
