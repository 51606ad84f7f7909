"""Communicators over several nodes beside the wire between the nodes used alone: plain MPI, plain gloo.

    mpiexec -n 4 python bench/bench_nodes.py --nodes 2                                  MPI
    OMP_NUM_THREADS=1 shmring run -n 4 bench/bench_nodes.py --nodes 2 --wire gloo       gloo, through torch.distributed

The nodes are forced, on one machine. Both contenders live in the same processes and take turns of some milliseconds in
an order drawn anew in each cycle. A figure is the median over the cycles of the slowest rank's time per call, in
microseconds, and behind it the least, which counts on a machine with other work; ``ratio`` the median over cycles of
ours over the other's: below 1 shmring is faster. Bytes are those of a rank's input; of its part in all_gather. ``trip``
is what two barriers of all ranks in shared memory took beside the row. ``way`` is how ours is made in the end. That
answers are right is for ``tests/``, but for one look here.
"""

import argparse
import os
import statistics
import sys

import numpy as np
from sides import output_of, run_of
from turns import compare

import shmring
from shmring.nodes.collectives import NRUNS, RUN

SIZES = (4, 64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")


class MpiContenders:
    """``ours`` and ``plain``: kind and bytes -> a call, and the array with its result."""

    name = "MPI"

    def __init__(self, args):
        from mpi4py import MPI

        self.mpi, self.world = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.world.rank, self.world.size
        self.clock = shmring.from_mpi()
        os.environ["SHMRING_NODE"] = str(self.rank * args.nodes // self.size)
        self.comm = shmring.from_mpi()

    def buffers(self, kind, nbytes):
        x = np.full(max(1, nbytes // 4), self.rank + 1, np.float32)
        if kind == "all_gather":
            return x, np.zeros((self.size, x.size), np.float32)
        if kind == "reduce_scatter":
            x = np.full((self.size, max(1, x.size // self.size)), self.rank + 1, np.float32)
            return x, np.zeros(x.shape[1], np.float32)
        return x, x

    def ours(self, kind, nbytes):
        x, out = self.buffers(kind, nbytes)
        call, one = getattr(self.comm, kind), out is x
        return (lambda: call(x)) if one else (lambda: call(x, out)), out

    def plain(self, kind, nbytes):
        x, out = self.buffers(kind, nbytes)
        world, in_place = self.world, self.mpi.IN_PLACE
        return {
            "all_reduce": lambda: world.Allreduce(in_place, x),
            "broadcast": lambda: world.Bcast(x),
            "all_gather": lambda: world.Allgather(x, out),
            "reduce_scatter": lambda: world.Reduce_scatter_block(x, out),
        }[kind], out

    def way(self, comm=None):
        """How the latest kind and size is made."""
        ways = (comm or self.comm).stats()["ways"]
        return ways[-1]["way"] if ways else "wire"

    def close(self):
        self.comm.close()
        self.clock.close()


class GlooContenders(MpiContenders):
    """The same through ``torch.distributed``."""

    name = "gloo"

    def __init__(self, args):
        import torch
        import torch.distributed as dist

        import shmring.torch

        self.torch, self.dist = torch, dist
        self.clock = shmring.init()
        self.rank, self.size = self.clock.rank, self.clock.size
        os.environ["SHMRING_NODE"] = str(self.rank * args.nodes // self.size)
        dist.init_process_group("shmring")
        self.groups = {"ours": dist.group.WORLD, "plain": dist.new_group(backend="gloo")}

    def ours(self, kind, nbytes, whose="ours"):
        x, out = (self.torch.from_numpy(a).view(-1) for a in self.buffers(kind, nbytes))
        dist, group = self.dist, self.groups[whose]
        out = x if kind in ("all_reduce", "broadcast") else out
        return {
            "all_reduce": lambda: dist.all_reduce(x, group=group),
            "broadcast": lambda: dist.broadcast(x, 0, group=group),
            "all_gather": lambda: dist.all_gather_into_tensor(out, x, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(out, x, group=group),
        }[kind], out.numpy()

    def plain(self, kind, nbytes):
        return self.ours(kind, nbytes, "plain")

    def way(self):
        return super().way(self.dist.group.WORLD.comm)

    def close(self):
        self.dist.destroy_process_group()
        self.clock.close()


def wanted(kind, size):
    """The first element of the result, with ``rank + 1`` in every input."""
    return size * (size + 1) / 2 if kind in ("all_reduce", "reduce_scatter") else 1


def check(contenders, kind, nbytes, call, out):
    """Calls until a way is chosen, the last with its result; then zeros, so that sums stay in range."""
    call()
    assert out.flat[0] == wanted(kind, contenders.size), (kind, nbytes, out.flat[0])
    out[...] = 0
    for _ in range(6 * NRUNS * RUN):
        call()


def main():
    """All rows, on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--wire", choices=["mpi", "gloo"], default="mpi")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="bytes")
    parser.add_argument("--seconds", type=float, default=1, help="for each row")
    parser.add_argument("--cycles", type=int, default=200, help="at most, for each row")
    args = parser.parse_args()
    contenders = (MpiContenders if args.wire == "mpi" else GlooContenders)(args)
    if contenders.rank == 0:
        shape = f"{args.nodes} x {contenders.size // args.nodes}"
        print(f"| {shape} | bytes | trip ns | ours us | least | {contenders.name} us | least | ratio | way |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in args.kinds:
        for nbytes in args.sizes:
            calls = {}
            for name in ("ours", "plain"):
                calls[name], out = getattr(contenders, name)(kind, nbytes)
                check(contenders, kind, nbytes, calls[name], out)
            found = compare(contenders.clock, calls, seconds=args.seconds, cycles=args.cycles)
            if contenders.rank == 0:
                trip, ratio = 1e3 * statistics.median(found.trip_us), found.ratio("ours", "plain")
                both = [f"{us['median']:.4g} | {us['min']:.4g}" for us in map(found.summary, ("ours", "plain"))]
                row = f"{trip:.0f} | {both[0]} | {both[1]} | {ratio:.2f} | {contenders.way()}"
                print(f"| {kind} | {nbytes} | {row} |", flush=True)
    contenders.clock.barrier()
    contenders.close()


if "pytest" in sys.modules:  # the interpreter of an MPI need not have it
    import pytest

    @pytest.mark.torch
    def test_nodes_beside_gloo(benchmark, tmp_path):
        """Over gloo."""
        pytest.importorskip("torch")
        command = run_of(2, __file__, "--wire", "gloo", "--cycles", "1", "--sizes", "4", "1048576")
        assert "reduce_scatter | 1048576" in benchmark.pedantic(output_of, (tmp_path, *command), rounds=1)


if __name__ == "__main__":
    main()
