"""Latency on a busy machine: queues, pipes and pools beside the standard library, collectives beside gloo and MPI.

    python bench/bench_busy.py
    python bench/bench_busy.py --loops 0,1,2 --calls 3000 --python ~/openmpi/bin/python
    python -m pytest bench/bench_busy.py --benchmark-disable     once each, to see that it runs

``--loops``: programs that compute without end, for each processor. They are not pinned, nor are the processes measured:
the scheduler places all of them. Each call is timed by itself, in microseconds, Python to Python: the median and the
99th percentile of all calls. The libraries take turns, a slice of calls each.
"""

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import shmring
import shmring.multiprocessing
from shmring.cli import bench
from shmring.core.placement.cpus import allowed_processors

LIBRARIES = {"shmring": shmring.multiprocessing, "standard": multiprocessing}
SLICES = 5
SIZES = {"8 B": 8, "64 KiB": 64 << 10}


@contextlib.contextmanager
def busy(nloops):
    """Run so many programs that compute without end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(nloops)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def times_of(call, ncalls):
    """Microseconds of each call."""
    taken = []
    for _ in range(ncalls):
        start = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - start) / 1e3)
    return taken


# ---- one process and another ----


def reflect(recv, send):
    """Send back what comes, until that is None."""
    while (item := recv()) is not None:
        send(item)


@contextlib.contextmanager
def reflected(context, recv, send, end):
    """A process beside this one that sends back."""
    process = context.Process(target=reflect, args=(recv, send))
    process.start()
    try:
        yield
    finally:
        end(None)
        process.join()


@contextlib.contextmanager
def pipe(library):
    """An int there and back through a pipe."""
    context = library.get_context("fork")
    near, far = context.Pipe()
    with reflected(context, far.recv, far.send, near.send):
        yield lambda: (near.send(1), near.recv())


@contextlib.contextmanager
def queue(library):
    """An int there and back through two queues."""
    context = library.get_context("fork")
    there, back = context.SimpleQueue(), context.SimpleQueue()
    with reflected(context, there.get, back.put, there.put):
        yield lambda: (there.put(1), back.get())


@contextlib.contextmanager
def pool(library):
    """A task of a pool with two workers."""
    with library.get_context("fork").Pool(2) as workers:
        workers.map(abs, range(50))
        yield lambda: workers.apply(abs, (1,))


@contextlib.contextmanager
def channel(library):
    """64 bytes there and back through two channels; the standard library has none."""
    if library is not shmring.multiprocessing:
        yield None
        return
    (there, far), (back, near) = shmring.channel(), shmring.channel()
    with reflected(multiprocessing.get_context("fork"), bytes_of(far), back.send, lambda _: there.close()):
        yield lambda: (there.send(b"x" * 64), near.recv())


def bytes_of(receiver):
    """A call that receives; None at the end of the stream."""

    def recv():
        try:
            return receiver.recv()
        except shmring.errors.EndOfStreamError:
            return None

    return recv


PAIRS = {one.__name__: one for one in (pipe, queue, channel, pool)}


def rows_of_pairs(ncalls):
    """(what, microseconds of each call of each library), one row after the other."""
    for name, kind in PAIRS.items():
        found = {}
        with contextlib.ExitStack() as stack:
            calls = {one: stack.enter_context(kind(library)) for one, library in LIBRARIES.items()}
            for _ in range(SLICES):
                for one, call in calls.items():
                    if call is not None:
                        found.setdefault(one, []).extend(times_of(call, max(1, ncalls // SLICES)))
        yield name, found


# ---- ranks ----


def rank_main(task):
    """The rows of a job on one rank, whatever has started it; rank 0 prints its times as JSON."""
    with shmring.init() as comm:
        libraries = bench.libraries(comm, task["peers"], task["folder"])
        for text, nbytes in SIZES.items():
            found = {one.name: [] for one in libraries}
            for _ in range(SLICES):
                for one in libraries:
                    shapes = bench.shapes_of("all_reduce", nbytes, comm.size, "float32")
                    with one.arrays(shapes, "float32") as (x, y):
                        x[...] = 0
                        statement, names = one.statement("all_reduce", x, y)
                        call = functools.partial(exec, compile(statement, one.name, "exec"), names)
                        times_of(call, 20)
                        comm.barrier()
                        found[one.name] += times_of(call, max(1, task["calls"] // SLICES))
                        comm.barrier()
            if comm.rank == 0:
                print(json.dumps([f"all_reduce {text}, {comm.size} ranks", found]), flush=True)
        bench.leave(libraries)


def rows_of_ranks(python, nranks, ncalls):
    """The same of collectives, of one job: with the MPI of this Python if it has one, and with gloo if it has torch."""
    look = "from importlib.util import find_spec; print(*(name for name in ('mpi4py', 'torch') if find_spec(name)))"
    has = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    peers = [peer for peer, module in bench.PEERS.items() if module in has]
    processors = sorted(allowed_processors())
    with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
        task = json.dumps({"peers": peers, "folder": folder, "calls": ncalls})
        launcher = [str(Path(python).with_name("mpiexec"))] if "mpi" in peers else [python, "-m", "shmring", "run"]
        environment = bench.mpi_environment(nranks, processors) | {"OMP_NUM_THREADS": "1"}
        command = [*launcher, "-n", str(nranks), python, __file__, "--task", task]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def cells(found):
    """Median and 99th percentile of each library."""
    return ", ".join(f"{name} {np.percentile(us, 50):.1f} ({np.percentile(us, 99):.0f})" for name, us in found.items())


def main():
    """Print the tables, one for each load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", default="0,1,2", help="busy loops for each processor, with commas")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--ranks", default="2,4", help="with commas; empty: no collectives")
    parser.add_argument("--python", action="append", default=[], help="an interpreter with mpi4py; several times")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        rank_main(json.loads(args.task))
        return
    print(f"### {bench.machine()}: us, median (99th percentile)")
    for loops in map(int, args.loops.split(",")):
        print(f"\n| {loops} busy loops for each processor | |\n| --- | --- |", flush=True)
        with busy(loops * len(allowed_processors())):
            for what, found in rows_of_pairs(args.calls):
                print(f"| {what} | {cells(found)} |", flush=True)
            for nranks in map(int, filter(None, args.ranks.split(","))):
                for python in args.python or [sys.executable]:
                    for what, found in rows_of_ranks(os.path.expanduser(python), nranks, args.calls):
                        print(f"| {what} | {cells(found)} |", flush=True)


if "pytest" in sys.modules:  # the interpreter of an MPI need not have it
    from sides import output_of

    def test_every_row_on_a_busy_machine(benchmark, tmp_path):
        """Pairs, and ranks beside the peers that this Python has."""
        command = [sys.executable, __file__, "--loops", "0,1", "--calls", "10", "--ranks", "2"]
        text = benchmark.pedantic(output_of, (tmp_path, *command), rounds=1)
        assert text.count("| all_reduce 8 B, 2 ranks |") == 2
        assert text.count("| pool |") == 2


if __name__ == "__main__":
    main()
