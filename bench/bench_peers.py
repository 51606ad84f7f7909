"""Collectives beside every MPI at hand, gloo and DeepSpeed: the tables of docs/figures/collectives.md.

    python bench/bench_peers.py
    python bench/bench_peers.py --op all_reduce,broadcast --sizes 8,1Mi -n 4 --ways private,share,plan
    python bench/bench_peers.py --python ~/mpich/bin/python --python ~/openmpi/bin/python --rewrite --json rows.json
    python bench/bench_peers.py --op all_reduce --deepspeed ~/DeepSpeed

Each Python has at most one MPI, so there is a job for each, in which all libraries that it has take turns in the same
processes, as in ``shmring bench``. A Python that is named needs mpi4py, and NumPy of the version that shmring was built
for; it takes this shmring. A cell has the microseconds of shmring, those of the library that is the fastest beside it,
and how many times as fast shmring is, cycle by cycle. Inputs are rewritten before each call, within the time, with
``--rewrite``. Nothing else should run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import shmring
from shmring.cli import bench
from shmring.core.placement.cpus import allowed_processors

SIZES = "8,4Ki,64Ki,256Ki,1Mi,4Mi,16Mi"


class Shared(bench.Ours):
    """Arrays of ``comm.empty``."""

    @contextmanager
    def arrays(self, shapes, dtype):
        yield [self.comm.empty(shape, dtype) for shape in shapes]


class Share(bench.Ours):
    """Private arrays that ``comm.share`` has made shared."""

    @contextmanager
    def arrays(self, shapes, dtype):
        arrays = [np.empty(shape, dtype) for shape in shapes]
        with self.comm.share(*arrays):
            yield arrays


class Plan(bench.Ours):
    """The call by ``comm.plan``."""

    def statement(self, op, x, y):
        text, names = super().statement(op, x, y)
        if op == "ping_pong":
            raise LookupError("has no plan")
        arguments = text.partition("(")[2].removesuffix(")").split(", ")
        return "plan()", {"plan": self.comm.plan(op, *(names.get(name) for name in arguments if name))}


class DeepSpeed(bench.Gloo):
    """``torch.ops.deepspeed.inference_all_reduce_``."""

    statements = {"all_reduce": "deepspeed(x)"}  # noqa: RUF012

    def __init__(self, comm, folder):
        import deepspeed_operator

        bench.Library.__init__(self, "deepspeed", comm, deepspeed=deepspeed_operator.operator(comm, folder))


WAYS = {"private": bench.Ours, "shared": Shared, "share": Share, "plan": Plan}


def rank_main(task):
    """All rows on one rank, whatever has started it; rank 0 prints them as JSON."""
    with shmring.init() as comm:
        os.sched_setaffinity(0, task["processors"])
        peers = bench.libraries(comm, task["peers"], task["folder"])[1:]
        if task["deepspeed"]:
            peers.append(DeepSpeed(comm, task["deepspeed"]))
        if comm.size <= len(task["processors"]):
            os.sched_setaffinity(0, {task["processors"][comm.rank]})
        found = [*(WAYS[way](way, comm) for way in task["ways"]), *peers]
        for op, nbytes in task["rows"]:
            row = bench.measure(comm, found, op, task["dtype"], nbytes, task["seconds"], rewrite=task["rewrite"])
            if comm.rank == 0:
                print(json.dumps(row), flush=True)
        if task["deepspeed"]:
            import deepspeed_operator

            deepspeed_operator.remove_names(comm)
        comm.barrier()
        bench.leave(peers)


def rows_of(python, args, rows):
    """The rows of one job: with the MPI of this Python if it has one, and with gloo if it has torch."""
    processors = sorted(allowed_processors())
    look = "from importlib.util import find_spec; print(*(name for name in ('mpi4py', 'torch') if find_spec(name)))"
    has = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    peers = [peer for peer, module in bench.PEERS.items() if module in has]
    with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
        task = {
            "rows": rows,
            "peers": peers,
            "folder": folder,
            "processors": processors,
            "ways": args.ways.split(","),
            "dtype": args.dtype,
            "seconds": args.seconds,
            "rewrite": args.rewrite,
            "deepspeed": args.deepspeed if "gloo" in peers else "",
        }
        launcher = [str(Path(python).with_name("mpiexec"))] if "mpi" in peers else [python, "-m", "shmring", "run"]
        command = [*launcher, "-n", str(args.ranks), python, __file__, "--task", json.dumps(task)]
        environment = bench.mpi_environment(args.ranks, processors) | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def cell(rows, way):
    """One cell of the table: of the rows of all jobs of one call and size."""
    timed = [(row, peer) for row in rows if way in row["us"] for peer in row["us"] if peer not in WAYS]
    if not timed:
        return next((us_text(statistics.median(row["us"][way])) for row in rows if way in row["us"]), "")
    row, peer = max(timed, key=lambda one: bench.ratio(one[0], way, one[1]))
    ours, theirs = (statistics.median(row["us"][name]) for name in (way, peer))
    return f"{us_text(ours)}, {us_text(theirs)} {peer}, **{us_text(bench.ratio(row, peer, way))}**"


def us_text(number):
    """Three digits, or a whole number."""
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default=",".join(bench.SHAPES), help="names with commas (default: all)")
    parser.add_argument("--sizes", type=bench.parse_sizes, default=bench.parse_sizes(SIZES), help=f"default: {SIZES}")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ways", default="private", help=f"of shmring, with commas: {', '.join(WAYS)}")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--rewrite", action="store_true", help="inputs are rewritten before each call")
    parser.add_argument("--python", action="append", default=[], help="an interpreter with mpi4py; several times")
    parser.add_argument("--deepspeed", default="", metavar="FOLDER", help="DeepSpeed's sources; needs torch and ninja")
    parser.add_argument("--json", metavar="FILE", help="write the times of all cycles")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        rank_main(json.loads(args.task))
        return
    sizes = {op: args.sizes if op != "barrier" else [0] for op in args.op.split(",")}
    rows = [(op, nbytes) for op, all_of_it in sizes.items() for nbytes in all_of_it]
    jobs = [rows_of(os.path.expanduser(python), args, rows) for python in args.python or [sys.executable]]
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": bench.machine(), "ranks": args.ranks, "jobs": jobs}))
    trips = [statistics.median(row["trip_us"]) for job in jobs for row in job]
    print(f"### {bench.machine()}\n")
    print(f"{args.ranks} ranks, {args.dtype}; round trips of {min(trips):.2f}-{max(trips):.2f} us\n")
    heads = [bench.size_text(nbytes) for nbytes in args.sizes]
    print(f"| call | {' | '.join(heads)} |\n|{' --- |' * (1 + len(heads))}")
    for op, all_of_it in sizes.items():
        for way in args.ways.split(","):
            by_size = [cell([job[rows.index((op, nbytes))] for job in jobs], way) for nbytes in all_of_it]
            by_size += [""] * (len(heads) - len(by_size))
            print(f"| {op}{'' if way == 'private' else f', {way}'} | {' | '.join(by_size)} |")
    problems = {(row["op"], *one) for job in jobs for row in job for one in row["problems"].items()}
    for op, name, problem in sorted(problems):
        print(f"\n{op}, {name}: {problem}")


if "pytest" in sys.modules:  # the interpreter of an MPI need not have it
    from sides import output_of

    def test_every_collective_beside_the_peers_that_are_here(benchmark, tmp_path):
        """Every way of shmring, and what this Python has."""
        command = [sys.executable, __file__, "--sizes", "8,4Ki", "--seconds", "0.01", "--ways", ",".join(WAYS)]
        text = benchmark.pedantic(output_of, (tmp_path, *command, "--rewrite"), rounds=1)
        assert "| barrier, plan |" in text


if __name__ == "__main__":
    main()
