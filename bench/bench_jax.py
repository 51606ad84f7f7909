"""JAX's psum over shmring beside gloo: one in a jit, and each of twenty in a jit.

    python bench/bench_jax.py -n 2
    python bench/bench_jax.py -n 4 --cycles 5 --sizes 4096 1048576

Which collectives JAX uses is fixed for a process. So the contenders are jobs of their own, one after the other, in an
order drawn anew in each cycle. In a job a size is timed in turns; a turn's time is that of the slowest process, and the
job's figure is the median of the turns. A row has the median over the cycles, in microseconds, and in brackets the
median over cycles of how many times as long as with shmring it took. Gloo has threads of its own for its sockets: with
as many processes as processors it suffers from that.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from sides import output_of, run_of
from turns import take_turns

CONTENDERS = ("shmring", "gloo")
SIZES = (4, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
TWENTY = 20


def measure(sizes, turn_s, nturns):
    """In a process of a job: seconds of a call by size and number of psums in the jit; the slowest process's."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    try:
        from jax import shard_map
    except ImportError:
        from jax.experimental.shard_map import shard_map
    if os.environ["CONTENDER"] == "gloo":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    n, mesh = jax.process_count(), Mesh(np.array(jax.devices()), ("x",))

    def slowest(seconds):
        return float(np.max(multihost_utils.process_allgather(np.float32(seconds))))

    def program(npsums):
        def each(a):
            for _ in range(npsums):
                a = jax.lax.psum(a, "x") / n
            return a

        return jax.jit(shard_map(each, mesh=mesh, in_specs=P("x"), out_specs=P()))

    figures = {}
    for nbytes in sizes:
        x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), np.full(nbytes // 4, 3, np.float32))
        for npsums in (1, TWENTY):
            call = program(npsums)
            out = np.asarray(call(x).addressable_data(0))
            assert out.shape == (nbytes // 4,), out.shape
            assert (out == 3).all()
            seconds = slowest(timed(call, x, 3) / 3)
            ncalls = max(1, min(1000, int(turn_s / seconds)))
            turns = [slowest(timed(call, x, ncalls) / ncalls) for _ in range(nturns)]
            figures[f"{nbytes} {npsums}"] = statistics.median(turns) / npsums
    return figures


def timed(call, x, ncalls):
    """Seconds of so many calls, each waited for."""
    start = time.perf_counter()
    for _ in range(ncalls):
        call(x).block_until_ready()
    return time.perf_counter() - start


def job(contender, n, sizes, turn_s, nturns):
    """Run one job; returns its figures."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "figures"
        options = ["--job", str(answer), "--turn", str(turn_s), "--turns", str(nturns), "--sizes", *map(str, sizes)]
        command = run_of(n, __file__, *options)
        command[command.index(__file__) : command.index(__file__)] = ["--jax"] if contender == "shmring" else []
        output_of(folder, *command, CONTENDER=contender)
        return json.loads(answer.read_text())


def compare(n, sizes, cycles, turn_s, nturns):
    """Run the jobs and print the table; returns the figures of all cycles."""
    jobs = {contender: partial(job, contender, n, sizes, turn_s, nturns) for contender in CONTENDERS}
    found = take_turns(jobs, lambda cycle: cycle >= cycles)
    print(f"{n} processes, {cycles} cycles, microseconds of a psum\n")
    print(f"{'bytes':>10} {'in a jit':>8} " + " ".join(f"{contender:>22}" for contender in CONTENDERS))
    for key in found["shmring"][0]:
        nbytes, npsums = key.split()
        cells = []
        for contender in CONTENDERS:
            times = [figures[key] for figures in found[contender]]
            ratio = statistics.median(t / own[key] for t, own in zip(times, found["shmring"], strict=True))
            cells.append(f"{1e6 * statistics.median(times):12.1f} ({ratio:6.2f})")
        print(f"{nbytes:>10} {npsums:>8} " + " ".join(f"{cell:>22}" for cell in cells))
    return found


def main():
    """Compare; or, in a process of a job, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="processes")
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument("--turn", type=float, default=0.2, metavar="SECONDS")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job is None:
        compare(args.n, args.sizes, args.cycles, args.turn, args.turns)
        return
    figures = measure(args.sizes, args.turn, args.turns)
    if os.environ["RANK"] == "0":
        Path(args.job).write_text(json.dumps(figures))


@pytest.mark.jax
def test_psum_beside_gloo(benchmark):
    """Two small sizes, once."""
    if not find_spec("jax"):
        pytest.skip("needs jax")
    found = benchmark.pedantic(compare, (2, (4, 4096), 1, 0.01, 1), rounds=1)
    assert {len(figures) for runs in found.values() for figures in runs} == {4}


if __name__ == "__main__":
    main()
