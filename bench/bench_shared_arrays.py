"""The gain of shared arrays, including the rewriting of the data.

A collective on shared arrays leaves part of its price to the owner's next write, which must fetch back the lines that
peers have stored into. So one round here is: every rank rewrites its input, then the call. Private and shared
arrays take turns, in slices of a few milliseconds, so that whatever disturbs one disturbs the other; one number is the
median of the slices' time of a round, on the slowest rank. ``ratio`` is shared over private.

    python bench/bench_shared_arrays.py [-n RANKS] [--kinds all_reduce,...] [--sizes 64K,1M,...]
"""

import argparse

import numpy as np
from turns import compare

import shmring
from shmring.cli.bench import parse_sizes

KINDS = ("all_reduce", "all_reduce into one result", "reduce_scatter", "broadcast", "all_gather", "all_to_all")
SIZES = ("16K", "64K", "256K", "1M", "4M", "16M", "64M")
SLICE_S, SLICES = 0.004, 25


def calls_for(comm, kind, nbytes):
    """The array to rewrite and the call, for private and for shared arrays: (x, call) and (x, call)."""
    size = comm.size
    count = nbytes // 4 // size * size
    name = kind.partition(" ")[0]
    shape = (size, count // size) if name in ("reduce_scatter", "all_to_all") else (count,)
    outs = {"all_reduce": (count,), "reduce_scatter": shape[1:], "all_gather": (size, *shape), "all_to_all": shape}

    def pair(x, out):
        if kind in ("all_reduce", "broadcast"):
            return x, lambda: getattr(comm, name)(x)
        return x, lambda: getattr(comm, name)(x, out)

    out_shape = outs.get(name, ())
    private = pair(np.ones(shape, np.float32), np.zeros(out_shape, np.float32))
    result = comm.shared_result(out_shape, np.float32) if "one result" in kind else comm.empty(out_shape, np.float32)
    return private, pair(comm.array(np.ones(shape, np.float32)), result)


def rewriting(x, call):
    """A call after its input is written."""

    def both():
        x.fill(1)
        call()

    return both


def bench(comm, kinds, sizes, cycles=SLICES):
    """Print one row per kind and size."""
    show = print if comm.rank == 0 else lambda *_, **__: None
    show(f"{comm.size} ranks, float32; microseconds of rewriting the input and one call")
    show(f"{'':28}{'bytes':>8}{'barrier':>9}{'private':>10}{'shared':>10}{'ratio':>7}")
    for kind in kinds:
        for size in sizes:
            calls = zip(("private", "shared"), calls_for(comm, kind, parse_sizes(size)[0]), strict=True)
            found = compare(comm, {name: rewriting(*call) for name, call in calls}, cycles=cycles, slice_s=SLICE_S)
            show(
                f"{kind:28}{size:>8}{min(found.trip_us) / 2:9.2f}{found.median('private'):10.1f}"
                f"{found.median('shared'):10.1f}{found.ratio('shared', 'private'):7.2f}",
                flush=True,
            )


def test_rewriting_private_and_shared_arrays(benchmark):
    """Each kind once, with one size."""
    benchmark.pedantic(shmring.spawn, (bench, 2, (KINDS, ("64K",), 1)), rounds=1)


def main():
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, default=2, help="number of ranks")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    a = parser.parse_args()
    shmring.spawn(bench, a.n, args=(a.kinds.split(","), a.sizes.split(",")))


if __name__ == "__main__":
    main()
