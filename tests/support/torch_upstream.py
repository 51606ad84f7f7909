"""Run the distributed tests that torch ships, on gloo and on shmring, and print the differences.

    python tests/support/torch_upstream.py                      # both, some minutes
    python tests/support/torch_upstream.py shmring -k all_reduce
    python tests/support/torch_upstream.py --show gloo.json shmring.json

Torch skips many tests for backends that it does not know by name. So with shmring the tests ask for gloo, and
``SHMRING_TORCH_TAKEOVER=gloo`` is set.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import unittest

WORLD_SIZE = 4

# What differs by intention.
BY_INTENTION = {"test_ddp_logging_data_cpu": "wants the name gloo in C++, where DDP then looks for gloo's class"}


def run(backend: str, match: str, skip: set[str], report: str, offset: int, count: int) -> None:
    """Run the tests whose names contain ``match``, writing one line for each."""
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(WORLD_SIZE),
        OMP_NUM_THREADS="1",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="40",
    )
    import faulthandler
    import tempfile

    faulthandler.enable()  # torch does not say what ended a rank that died
    os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(dir=os.getcwd()))
    if backend == "shmring":
        stand_in_for_gloo()
    # Imported here, not above: it reads the environment while it loads.
    import torch
    from torch.testing._internal.distributed import distributed_test as upstream

    torch.set_num_threads(1)

    class TestShipped(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        def _spawn_processes(self):
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def setUp(self):
            super().setUp()
            self._spawn_processes()

    TestShipped.__module__ = "__main__"
    globals()["TestShipped"] = TestShipped
    names = [name for name in unittest.TestLoader().getTestCaseNames(TestShipped) if match in name and name not in skip]
    for name in names[offset : offset + count]:
        result = unittest.TestResult()
        started = time.monotonic()
        test = TestShipped(name)
        test.run(result)
        troubles = result.errors + result.failures
        outcome = "failed" if troubles else "skipped" if result.skipped else "passed"
        reason = troubles[0][1] if troubles else result.skipped[0][1] if result.skipped else ""
        killed = [process.exitcode for process in test.processes if (process.exitcode or 0) < 0] if troubles else []
        if killed:
            reason += f"\nprocesses were killed: {killed}"
        line = {"name": name, "outcome": outcome, "reason": reason[-3000:], "s": round(time.monotonic() - started, 1)}
        with open(report, "a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{backend:8} {outcome:8} {line['s']:6} {name}", flush=True)


def stand_in_for_gloo() -> None:
    """Have torch make a shmring group where it is asked for one of gloo."""
    os.environ["SHMRING_TORCH_TAKEOVER"] = "gloo"
    import shmring.torch

    shmring.torch.register()  # where the entry point of an installed package has not
    from torch.autograd.profiler_util import FunctionEvent

    # Calls of ours are events as any other, where gloo's begin in one thread and end in another.
    FunctionEvent.is_async = property(lambda self: True, lambda self, value: None)


def show(reports: list[str]) -> None:
    """Compare reports: how many passed in each, and which did so in one alone."""
    outcomes = []
    for path in reports:
        with open(path) as file:
            outcomes.append({line["name"]: line["outcome"] for line in map(json.loads, file)})
        counts = {what: list(outcomes[-1].values()).count(what) for what in ("passed", "failed", "skipped")}
        print(path, counts)
    for name in sorted(set().union(*outcomes)):
        found = [one.get(name, "not run") for one in outcomes]
        if len(set(found)) > 1:
            print(f"  {name}: {' / '.join(found)}")


def main() -> None:
    """Understand the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", nargs="?", choices=["gloo", "shmring"])
    parser.add_argument("-k", dest="match", default="", help="tests whose names contain this")
    parser.add_argument("--skip", action="append", default=[], help="a test to leave out")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--report", help="where the outcomes are appended (default: <backend>.json)")
    parser.add_argument("--show", nargs="+", metavar="REPORT", help="compare reports and run nothing")
    given = parser.parse_args()
    if given.show:
        show(given.show)
    elif given.backend is not None:
        report = given.report or f"{given.backend}.json"
        run(given.backend, given.match, set(given.skip), report, given.offset, given.count)
    else:
        for backend in ("gloo", "shmring"):
            subprocess.run([sys.executable, __file__, backend, *sys.argv[1:]], check=True)
        show(["gloo.json", "shmring.json"])


if __name__ == "__main__":
    main()
