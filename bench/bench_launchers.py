"""A training step under `shmring run` and under torchrun, each with the threads that it sets for numerical libraries.

    python bench/bench_launchers.py [--ranks 2 4] [--steps 60] [--runs 3]

DistributedDataParallel of six layers of 512 x 512, batch 64, over shmring; milliseconds of a step: the median of the
medians of all runs, in turns. ``all processors`` is `shmring run` with a thread for each processor in each rank, which
is what libraries do where no variable is set.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from functools import partial

import pytest
from sides import output_of, run_of
from turns import PROCESSORS, take_turns

from shmring.launch.numerical_threads import THREAD_VARIABLES


def train(steps):
    """In a rank: train; rank 0 prints the milliseconds of a step and the threads of torch."""
    import torch
    import torch.distributed as dist

    import shmring.torch  # noqa: F401  registers the backend

    dist.init_process_group("shmring")
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, times = torch.randn(64, 512), []
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        times.append(1000 * (time.perf_counter() - began))
    if dist.get_rank() == 0:
        print("step:", statistics.median(times[steps // 5 :]), torch.get_num_threads(), flush=True)
    dist.destroy_process_group()


def measured(command, variables):
    """Milliseconds of a step, and threads, of one run."""
    env = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    milliseconds, threads = done.stdout.rpartition("step:")[2].split()[:2]
    return float(milliseconds), int(threads)


def main():
    """Run all ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.steps)
        return
    worker = [__file__, "--train", "--steps", str(args.steps)]
    print("| launcher | ranks | threads of a rank | step, ms |\n| --- | --- | --- | --- |")
    for n in args.ranks:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n), "--standalone", *worker]
        ways = {
            "shmring run": (run_of(n, *worker), {}),
            "torchrun": (torchrun, {}),
            "all processors": (run_of(n, *worker), {"OMP_NUM_THREADS": str(len(PROCESSORS))}),
        }
        slices = {name: partial(measured, *way) for name, way in ways.items()}
        for name, runs in take_turns(slices, lambda cycle: cycle >= args.runs).items():
            step_ms = statistics.median(milliseconds for milliseconds, _ in runs)
            print(f"| {name} | {n} | {runs[0][1]} | {step_ms:.1f} |", flush=True)


@pytest.mark.torch
def test_a_step_under_both_launchers(benchmark, tmp_path):
    """The whole program once, with few steps."""
    pytest.importorskip("torch")
    command = [sys.executable, __file__, "--ranks", "2", "--steps", "5", "--runs", "1"]
    assert "| torchrun | 2 | 1 |" in benchmark.pedantic(output_of, (tmp_path, *command), rounds=1)


if __name__ == "__main__":
    main()
