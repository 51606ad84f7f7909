"""What watching costs: a watcher the ranks that it watches, and a timeline the calls that it records.

    python -m pytest bench/bench_watching.py
    python -m pytest bench/bench_watching.py --benchmark-disable     once, to see that it runs

Watched: 8 byte all-reduces on two pinned ranks, watched and not, in turn. The watcher is ``shmring top`` at ten looks a
second, stopped by a signal in every other slice. ``us`` in the extra information has the median time of a call in both
kinds of slices, ``ratio`` their quotient.

Recorded: the same call on a communicator of one rank, where nothing else takes time, in turn without a timeline, with
one, and with a profiler that is known and does not run (as torch's, once `shmring.torch` is used). ``ns`` has the
median time of a call of each kind, ``added_ns`` what the two add.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
import uuid

import numpy as np
from bench_collectives import follow, lead, round_trip_us
from sides import ranks

import shmring
from shmring.collectives.engine.recording import show_calls

TIMES = 20000  # calls in a slice
WATCHED_TIMES = 10_000_000  # seconds of work, so that each slice has looks in it
WATCHER = [sys.executable, "-m", "shmring", "top", "--json"]


def test_watched_and_unwatched_calls(benchmark):
    """Slices of both kinds in turn."""
    times = WATCHED_TIMES if benchmark.enabled else 100
    affinity, taken = os.sched_getaffinity(0), {"watched": [], "unwatched": []}

    def play_both():
        for kind, order in (("watched", signal.SIGCONT), ("unwatched", signal.SIGSTOP)):
            watcher.send_signal(order)
            started = time.perf_counter()
            lead(comm, "all_reduce", 8, times)
            taken[kind].append(1e6 * (time.perf_counter() - started) / times)

    free = {"stdout": subprocess.DEVNULL, "preexec_fn": lambda: os.sched_setaffinity(0, affinity)}
    with ranks(follow) as comm, subprocess.Popen(WATCHER, **free) as watcher:
        trip_us = round_trip_us(comm)
        benchmark.pedantic(play_both, rounds=7, warmup_rounds=1)
        comm.broadcast(np.zeros(3, np.int64))
        watcher.kill()
    us = {kind: statistics.median(each) for kind, each in taken.items()}
    benchmark.group = "all_reduce, 8 bytes"
    benchmark.extra_info.update(round_trip_us=round(trip_us, 3), us=us, ratio=us["watched"] / us["unwatched"])


def test_recorded_and_unrecorded_calls(benchmark, tmp_path):
    """Slices of the three kinds in turn."""
    times = TIMES if benchmark.enabled else 100
    x = np.ones(1)
    taken = {"plain": [], "profiler known": [], "recorded": []}

    def play(kind):
        started = time.perf_counter()
        for _ in range(times):
            comm.all_reduce(x)
        taken[kind].append(1e9 * (time.perf_counter() - started) / times)

    def play_all():
        play("plain")
        with comm.trace(tmp_path):
            play("recorded")
        show_calls({"is_running": False}, "is_running")
        play("profiler known")
        show_calls(None)
        for path in tmp_path.iterdir():
            path.unlink()

    with shmring.init(rank=0, size=1, session=uuid.uuid4().hex) as comm:
        benchmark.pedantic(play_all, rounds=15, warmup_rounds=2)
    ns = {kind: statistics.median(each) for kind, each in taken.items()}
    added = {kind: round(ns[kind] - ns["plain"], 1) for kind in ("profiler known", "recorded")}
    benchmark.group = "all_reduce, 8 bytes, one rank"
    benchmark.extra_info.update(ns=ns, added_ns=added)
