"""Time shmring beside gloo (of torch) and MPI (by mpi4py) where this Python has them, and check the results.

  shmring bench                                      all_reduce, 2 ranks, 8 B to 16 MiB
  shmring bench --op broadcast barrier -n 4 --sizes 8,64Ki,1Mi
  shmring bench --op all --dtype float64 --json

All libraries are in the same processes, one for each rank, and take turns of some milliseconds, in an order drawn anew
in each cycle. A figure is the median over the cycles of the slowest rank's time per call, with half the interquartile
range; `speed` is how many times as fast as the fastest other library shmring is, cycle by cycle; `trip` is the time of
two barriers of shmring, a round trip between the processors. docs/benchmarks.md has figures.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import shmring
from shmring.core.base.text import size_text
from shmring.core.placement.cpus import allowed_processors
from shmring.core.placement.topology import discover
from shmring.launch.numerical_threads import ONE_THREAD

from .arguments import checked, duration, ranks

SLICE_S = 0.01
LEAST_CYCLES = 5
DEFAULT_SIZES = "8,4Ki,64Ki,1Mi,16Mi"
DTYPES = "float32", "float64", "int32", "int64"
# The elements of x and y: the whole problem, a block of each rank, or none. Where one is a block, or both are blocks of
# all ranks, the whole has a row for each rank.
WHOLE, ROWS, BLOCK, NONE = "whole", "rows", "block", "none"
SHAPES = {
    "all_reduce": (WHOLE, NONE),
    "reduce": (WHOLE, NONE),
    "broadcast": (WHOLE, NONE),
    "all_gather": (BLOCK, ROWS),
    "gather": (BLOCK, ROWS),
    "reduce_scatter": (ROWS, BLOCK),
    "scatter": (ROWS, BLOCK),
    "all_to_all": (ROWS, ROWS),
    "ping_pong": (WHOLE, WHOLE),
    "barrier": (NONE, NONE),
}
PEERS = {"gloo": "torch", "mpi": "mpi4py"}  # and the module that each needs
# Open MPI and Intel MPI as they are best on one machine; the ranks bind themselves, alike for all libraries.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "I_MPI_FABRICS": "shm",
    "I_MPI_PIN": "0",
}
MPI_CROWDED = {"OMPI_MCA_mpi_yield_when_idle": "1", "I_MPI_THREAD_YIELD": "2"}


# ---- the libraries ----


class Library:
    """The statements that users of a library write, with arrays ``x`` and ``y`` and the names in ``names``.

    Of two statements the first is for rank 0 and the second for others; in ping_pong, for even and for odd ranks.
    """

    statements: ClassVar[Mapping[str, str | tuple[str, str]]] = {}

    def __init__(self, name: str, comm: shmring.Communicator, **names: Any) -> None:
        self.name, self.comm, self.names = name, comm, {"comm": comm, **names}

    @contextlib.contextmanager
    def arrays(self, shapes: Sequence[tuple[int, ...]], dtype: str) -> Iterator[list[np.ndarray]]:
        """Arrays as users of the library make them."""
        yield [np.empty(shape, dtype) for shape in shapes]

    def statement(self, op: str, x: np.ndarray, y: np.ndarray) -> tuple[str, dict[str, Any]]:
        """The statement of this rank, and its names. `LookupError` if the library has no such call."""
        partner = self.comm.rank ^ 1
        if op == "ping_pong" and partner >= self.comm.size:
            return "pass", {}
        found = self.statements[op]
        is_second = self.comm.rank % 2 if op == "ping_pong" else self.comm.rank > 0
        return found if isinstance(found, str) else found[is_second], {**self.names, "x": x, "y": y, "partner": partner}


class Ours(Library):
    """shmring on arrays of NumPy."""

    statements: ClassVar = {
        **{op: f"comm.{op}(x)" for op in ("all_reduce", "reduce", "broadcast")},
        **{op: f"comm.{op}(x, y)" for op in ("all_gather", "reduce_scatter", "all_to_all")},
        "gather": ("comm.gather(x, y)", "comm.gather(x)"),
        "scatter": ("comm.scatter(x, y)", "comm.scatter(None, y)"),
        "barrier": "comm.barrier()",
        "ping_pong": ("comm.send(x, partner); comm.recv(y, partner)", "comm.recv(y, partner); comm.send(x, partner)"),
    }


class Gloo(Library):
    """``torch.distributed`` with one of its backends, on tensors over the same memory."""

    statements: ClassVar = {
        "all_reduce": "dist.all_reduce(x)",
        "reduce": "dist.reduce(x, 0)",
        "broadcast": "dist.broadcast(x, 0)",
        "all_gather": "dist.all_gather_into_tensor(y, x)",
        "gather": ("dist.gather(x, parts['y'])", "dist.gather(x)"),
        "reduce_scatter": "dist.reduce_scatter_tensor(y, x)",
        "scatter": ("dist.scatter(y, parts['x'])", "dist.scatter(y)"),
        "all_to_all": "dist.all_to_all_single(y, x)",
        "barrier": "dist.barrier()",
        "ping_pong": ("dist.send(x, partner); dist.recv(y, partner)", "dist.recv(y, partner); dist.send(x, partner)"),
    }

    def __init__(self, comm: shmring.Communicator, folder: str) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        warnings.simplefilter("ignore", FutureWarning)  # torch has other names for the same calls since 2.13
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size)
        super().__init__("gloo", comm, dist=dist)

    def statement(self, op: str, x: np.ndarray, y: np.ndarray) -> tuple[str, dict[str, Any]]:
        import torch

        text, names = super().statement(op, x, y)
        tensors = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
        parts = {name: list(tensor) for name, tensor in tensors.items() if tensor.ndim == 2}
        return text, names | {name: tensor.view(-1) for name, tensor in tensors.items()} | {"parts": parts}


class Mpi(Library):
    """``MPI.COMM_WORLD`` by mpi4py's calls on buffers, its fast ones."""

    statements: ClassVar = {
        "all_reduce": "world.Allreduce(MPI.IN_PLACE, x)",
        "reduce": ("world.Reduce(MPI.IN_PLACE, x)", "world.Reduce(x, None)"),
        "broadcast": "world.Bcast(x)",
        "all_gather": "world.Allgather(x, y)",
        "gather": ("world.Gather(x, y)", "world.Gather(x, None)"),
        "reduce_scatter": "world.Reduce_scatter_block(x, y)",
        "scatter": ("world.Scatter(x, y)", "world.Scatter(None, y)"),
        "all_to_all": "world.Alltoall(x, y)",
        "barrier": "world.Barrier()",
        "ping_pong": (
            "world.Send(x, partner); world.Recv(y, partner)",
            "world.Recv(y, partner); world.Send(x, partner)",
        ),
    }

    def __init__(self, comm: shmring.Communicator) -> None:
        from mpi4py import MPI

        if (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) != (comm.rank, comm.size):
            raise RuntimeError(f"MPI has rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}")
        known = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel": "intelmpi"}
        version = MPI.Get_library_version()
        name = next((name for start, name in known.items() if version.startswith(start)), "mpi")
        super().__init__(name, comm, world=MPI.COMM_WORLD, MPI=MPI)


def libraries(comm: shmring.Communicator, peers: Sequence[str], folder: str) -> list[Library]:
    """shmring, and the peers that can take part. All ranks call; the reason is printed for one that cannot."""
    found: list[Library] = [Ours("shmring", comm)]
    makers = {"gloo": lambda: Gloo(comm, folder), "mpi": lambda: Mpi(comm)}
    for peer in peers:
        made: list[Library] = []
        problem = failure(comm, functools.partial(_append, made, makers[peer]))
        if not problem:
            found += made
        elif comm.rank == 0:
            print(f"{peer} cannot take part: {problem}", file=sys.stderr)
    return found


def _append(made: list[Library], make: Callable[[], Library]) -> None:
    made.append(make())


def leave(found: Sequence[Library]) -> None:
    """End what would complain at the end of the process."""
    for one in found:
        if "dist" in one.names:
            one.names["dist"].destroy_process_group()


# ---- one row ----


def shapes_of(op: str, nbytes: int, size: int, dtype: str) -> list[tuple[int, ...]]:
    """The shapes of x and y in a problem of ``nbytes``: those of all ranks' blocks together."""
    count = max(1, nbytes // np.dtype(dtype).itemsize)
    block = max(1, count // size)
    return [{WHOLE: (count,), ROWS: (size, block), BLOCK: (block,), NONE: (0,)}[shape] for shape in SHAPES[op]]


def fill(op: str, rank: int, size: int, x: np.ndarray, y: np.ndarray) -> np.ndarray | float | None:
    """Write the inputs of a check; the result that this rank gets: of x in place, else of y; None if it gets none."""
    rows, total = np.arange(1, size + 1).reshape(-1, 1), size * (size + 1) // 2
    x[...] = y[...] = 0
    if op == "all_to_all":
        x[...] = size * rank + rows
        return size * (rows - 1) + rank + 1
    if op == "reduce_scatter":
        x[...] = (rank + 1) * rows
        return total * (rank + 1)
    if op == "scatter":
        x[...] = rows if rank == 0 else 0
        return rank + 1
    if op == "broadcast":
        x[...] = rank == 0
        return 1
    x[...] = rank + 1
    by_op = {
        "all_reduce": total,
        "reduce": total if rank == 0 else None,
        "all_gather": rows,
        "gather": rows if rank == 0 else None,
        "barrier": None,
        "ping_pong": (rank ^ 1) + 1 if rank ^ 1 < size else None,
    }
    return by_op[op]


class _Checked:
    """A call of one library on this rank, and whether its result is right."""

    def __init__(self, one: Library, op: str, x: np.ndarray, y: np.ndarray) -> None:
        self.one, self.op, self.x, self.y = one, op, x, y

    def prepare(self) -> None:
        """Find the statement, and write the inputs."""
        self.statement, self.names = self.one.statement(self.op, self.x, self.y)
        self.expected = fill(self.op, self.one.comm.rank, self.one.comm.size, self.x, self.y)

    def check(self) -> str:
        """Make one call: ``"WRONG"``, or nothing."""
        timeit.Timer(self.statement, globals=self.names).timeit(1)
        result = self.x if SHAPES[self.op][1] is NONE else self.y
        return "" if self.expected is None or (result == self.expected).all() else "WRONG"

    def timer(self, rewrite: bool) -> timeit.Timer:
        """For the timed calls, of zeros, whose sums in place stay in range."""
        self.x[...] = self.y[...] = 0
        has_input = self.x.size and (self.op not in ("broadcast", "scatter") or self.one.comm.rank == 0)
        timed = f"content.fill(1); {self.statement}" if rewrite and has_input else self.statement
        return timeit.Timer(timed, globals={**self.names, "content": self.x})


def failure(comm: shmring.Communicator, step: Callable[[], str | None]) -> str:
    """Why a step fails on one of the ranks, which all call; empty if it succeeds on all of them."""
    try:
        problem = step()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
    return next(filter(None, comm.all_gather_object(problem)), "")


def seconds_of(comm: shmring.Communicator, timer: timeit.Timer, times: int, warmup: int = 0) -> float:
    """Seconds of a call on the slowest rank, of some in a row. All ranks call."""
    timer.timeit(warmup)
    comm.barrier()
    return max(comm.all_gather_object(timer.timeit(times))) / times


def measure(
    comm: shmring.Communicator,
    found: Sequence[Library],
    op: str,
    dtype: str,
    nbytes: int,
    seconds: float,
    *,
    rewrite: bool = False,
) -> dict[str, Any]:
    """One row: microseconds of each library in each cycle, those of a trip, and why a library has none.

    ``rewrite``: each rank writes its input before each call, within the time.
    """
    row: dict[str, Any] = {"op": op, "dtype": dtype, "nbytes": nbytes, "us": {}, "trip_us": [], "problems": {}}
    timers = {}
    with contextlib.ExitStack() as stack:
        for one in found:
            x, y = stack.enter_context(one.arrays(shapes_of(op, nbytes, comm.size, dtype), dtype))
            call = _Checked(one, op, x, y)
            # Between the two, no rank overwrites an input that a peer still reads.
            if problem := failure(comm, call.prepare) or failure(comm, call.check):
                row["problems"][one.name] = problem
            else:
                timers[one.name] = call.timer(rewrite)
        row["us"] = {name: [] for name in timers}
        times = {}
        for name, timer in timers.items():
            few = seconds_of(comm, timer, 3, 1)
            times[name] = max(1, int(SLICE_S / max(1e-7, seconds_of(comm, timer, max(1, int(1e-3 / few))))))
        trip, order = timeit.Timer("comm.barrier()", globals={"comm": comm}), random.Random(f"{op} {nbytes}")
        began = time.monotonic()
        while comm.broadcast_object(len(row["trip_us"]) < LEAST_CYCLES or time.monotonic() - began < seconds):
            row["trip_us"].append(2e6 * seconds_of(comm, trip, 500))
            for name in order.sample(list(timers), len(timers)):
                us = 1e6 * seconds_of(comm, timers[name], times[name], (times[name] + 1) // 2)
                row["us"][name].append(us)
    return row


def ratio(row: Mapping[str, Any], name: str, to: str) -> float:
    """How many times as long one library takes as another: the median over the cycles."""
    return statistics.median(a / b for a, b in zip(row["us"][name], row["us"][to], strict=True))


# ---- the ranks ----


def rank_main(comm: shmring.Communicator, task: Mapping[str, Any]) -> int:
    """All rows on one rank; rank 0 prints them. 1 if shmring failed or gave a wrong result."""
    processors = task["processors"]
    os.sched_setaffinity(0, processors)  # whatever a launcher has bound
    found = libraries(comm, task["peers"], task["folder"])
    if comm.size <= len(processors):
        os.sched_setaffinity(0, {processors[comm.rank]})  # not the threads of gloo, which have begun before
    rows, op = [], ""
    for row_op, nbytes in task["rows"]:
        row = measure(comm, found, row_op, task["dtype"], nbytes, task["seconds"])
        rows.append(row)
        if comm.rank == 0 and not task["json"]:
            print("\n".join(lines_of(row, [one.name for one in found], comm.size, is_first=op != row_op)), flush=True)
        op = row_op
    if comm.rank == 0 and task["json"]:
        facts = {"machine": machine(), "ranks": comm.size, "rows": rows}
        print(json.dumps(facts))
    comm.barrier()
    leave(found)
    return int(any("shmring" in row["problems"] for row in rows))


def rank_of_mpi() -> None:
    """One rank under ``mpiexec``; the task is the last argument."""
    with shmring.init() as comm:
        status = rank_main(comm, json.loads(sys.argv[-1]))
    sys.exit(status)


def lines_of(row: Mapping[str, Any], names: Sequence[str], size: int, *, is_first: bool) -> list[str]:
    """The lines of a row, after a heading if it is the first of its call."""
    lines = []
    if is_first:
        lines.append(f"\n{row['op']}, {row['dtype']}, {size} ranks: microseconds per call")
        lines.append(f"{'size':>9} {'trip':>7} " + " ".join(f"{name:>14}" for name in names) + "  speed")
    cells = []
    for name in names:
        if name not in row["us"]:
            cells.append("WRONG" if row["problems"][name] == "WRONG" else "-")
            lines.append(f"{'':>9} {name}: {row['problems'][name]}")
            continue
        low, middle, high = statistics.quantiles(row["us"][name], n=4, method="inclusive")
        cells.append(f"{middle:.4g} ±{50 * (high - low) / middle:.0f}%")
    peers = [name for name in row["us"] if name != "shmring"]
    speed = ""
    if peers and "shmring" in row["us"]:
        best = min(peers, key=lambda name: statistics.median(row["us"][name]))
        times = ratio(row, best, "shmring")
        speed = f"{times:.0f}x {best}" if times >= 100 else f"{times:.3g}x {best}"
    trip = statistics.median(row["trip_us"])
    size_cell = size_text(row["nbytes"]) if row["nbytes"] else ""
    lines.append(f"{size_cell:>9} {trip:>7.3f} " + " ".join(f"{cell:>14}" for cell in cells) + f"  {speed}")
    return lines


# ---- the command ----


def machine() -> str:
    """The processors in a few words."""
    found = discover()
    nodes = f", {len(found.nodes)} NUMA nodes" if len(found.nodes) > 1 else ""
    return f"{found.model or found.architecture}, {len(found.processors)} processors{nodes}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring bench``."""
    add = parser.add_argument
    add(
        "--op",
        nargs="+",
        choices=[*SHAPES, "all"],
        default=["all_reduce"],
        metavar="NAME",
        help=f"{', '.join(SHAPES)}; or all (default: all_reduce)",
    )
    add("--dtype", choices=DTYPES, default="float32", metavar="NAME", help=f"{', '.join(DTYPES)} (default: float32)")
    add("-n", "--ranks", type=ranks, default=2, metavar="N", help="processes (default: 2)")
    add(
        "--sizes",
        type=checked(parse_sizes),
        default=parse_sizes(DEFAULT_SIZES),
        metavar="SIZES",
        help=f"bytes of all ranks' blocks together (default: {DEFAULT_SIZES})",
    )
    add("--seconds", type=duration, default=2.0, metavar="S", help="for each row, 5 cycles at least (default: 2)")
    add(
        "--peers",
        nargs="+",
        choices=[*PEERS, "none"],
        metavar="NAME",
        help="gloo, mpi, or none (default: what this Python has)",
    )
    add("--json", action="store_true", help="print one JSON object with the times of all cycles")


def main(args: argparse.Namespace) -> int:
    """Run it; 0, or 1 if shmring failed or gave a wrong result."""
    installed = [peer for peer, module in PEERS.items() if importlib.util.find_spec(module)]
    peers = [peer for peer in args.peers or installed if peer != "none"]
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec") or ""
    if "mpi" in peers and not mpiexec:
        print("mpi cannot take part: there is no mpiexec", file=sys.stderr)
        peers.remove("mpi")
    processors = sorted(allowed_processors())
    ops = SHAPES if "all" in args.op else args.op
    task = {
        "rows": [(op, n) for op in ops for n in (args.sizes if op != "barrier" else [0])],
        "dtype": args.dtype,
        "seconds": args.seconds,
        "peers": peers,
        "processors": processors,
        "json": args.json,
    }
    if not args.json:
        print(f"{machine()}; shmring {shmring.__version__}", flush=True)
    with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
        task["folder"] = folder
        if "mpi" not in peers:
            return max(shmring.spawn(rank_main, args.ranks, args=(task,), env=ONE_THREAD))
        command = [
            mpiexec,
            "-n",
            str(args.ranks),
            sys.executable,
            "-c",
            "from shmring.cli.bench import rank_of_mpi; rank_of_mpi()",
            json.dumps(task),
        ]
        return subprocess.run(command, env=mpi_environment(args.ranks, processors), check=False).returncode


def mpi_environment(size: int, processors: Sequence[int]) -> dict[str, str]:
    """The environment of ``mpiexec``, in which ranks find this shmring, installed or not."""
    path = [str(Path(shmring.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    crowded = MPI_CROWDED if size > len(processors) else {}
    return {**MPI_ENVIRONMENT, **crowded, **os.environ, "PYTHONPATH": os.pathsep.join(path)}


def parse_sizes(text: str) -> list[int]:
    """``"8,4Ki,1Mi"`` as bytes; Ki, Mi and Gi (or K, M, G) are powers of 1024."""
    sizes = []
    for part in text.split(","):
        match = re.fullmatch(r"0*([1-9]\d*)([kmg]?)i?b?", part.strip().lower())
        if not match:
            raise ValueError(f"{part!r} is not a size: 8, 4Ki, 64Mi")
        sizes.append(int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]])
    return sizes
