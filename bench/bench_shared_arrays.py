"""The gain of shared arrays, including the rewriting of the data.

A collective on shared arrays leaves part of its price to the owner's next write, which must fetch back the lines that
peers have stored into. So one round here is: every rank rewrites its input, then the call. Private and shared
arrays take turns, in slices of some milliseconds, so that whatever disturbs one disturbs the other; one number is the
best slice's mean time of a round, on its slowest rank. ``ratio`` is shared over private.

    python bench/bench_shared_arrays.py [-n RANKS] [--kinds all_reduce,...] [--sizes 64K,1M,...]
"""

import argparse
import time

import numpy as np

import shmring

KINDS = ("all_reduce", "all_reduce into one result", "reduce_scatter", "broadcast", "all_gather", "all_to_all")
SIZES = ("16K", "64K", "256K", "1M", "4M", "16M", "64M")
SLICE_S, SLICES = 0.004, 25


def nbytes_of(text):
    """A number of bytes, with K or M for powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1])
    return int(text[:-1]) * factor if factor else int(text)


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


def round_time_s(comm, x, call, times):
    """Mean seconds to rewrite ``x`` and call."""
    comm.barrier()
    start = time.perf_counter()
    for i in range(times):
        x.fill(i)
        call()
    return (time.perf_counter() - start) / times


def measure(comm, kind, nbytes):
    """Seconds of a round on private and on shared arrays, of the slowest rank, in the best slice."""
    calls = calls_for(comm, kind, nbytes)
    first = np.array([max(round_time_s(comm, *call, 2) for call in calls)])
    times = max(1, int(SLICE_S / comm.all_reduce(first, op="max")[0]))
    slices = np.array([[round_time_s(comm, *call, times) for call in calls] for _ in range(SLICES)])
    comm.all_reduce(slices, op="max")
    return slices.min(axis=0)


def round_trip_s(comm):
    """Seconds of a barrier: between two ranks about the one-word round trip, near or far."""
    return min(round_time_s(comm, np.empty(0), comm.barrier, 200) for _ in range(15))


def bench(comm, kinds, sizes):
    """Print one row per kind and size."""
    show = print if comm.rank == 0 else lambda *_, **__: None
    show(f"{comm.size} ranks, float32; microseconds of rewriting the input and one call")
    show(f"{'':28}{'bytes':>8}{'barrier':>9}{'private':>10}{'shared':>10}{'ratio':>7}")
    for kind in kinds:
        for size in sizes:
            barrier = round_trip_s(comm)
            private, shared = measure(comm, kind, nbytes_of(size))
            show(f"{kind:28}{size:>8}{1e6 * barrier:9.2f}{1e6 * private:10.1f}{1e6 * shared:10.1f}"
                f"{shared / private:7.2f}", flush=True)  # fmt: skip


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
