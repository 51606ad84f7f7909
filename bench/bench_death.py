"""After how long the survivors see that a rank was killed: the rows of docs/figures/deaths.md.

    python bench/bench_death.py
    python bench/bench_death.py -n 3 --cycles 8 --python ~/mpich/bin/python

The last of the ranks makes 20 all-reduces and kills itself with SIGKILL while the others go on calling. A figure is the
time from just before that to the error of a survivor's call, or to the end of all where the launcher ends them. The
libraries: shmring, gloo where there is torch, MPI where there is mpi4py. Channels: bench_channel_peers.py.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from turns import summary

import shmring
from shmring.cli import bench
from shmring.core.placement.cpus import allowed_processors

CALLS, WAIT_S = 20, 30


def rank_main(library, folder):
    """One rank: print the microseconds and the error."""
    if library != "mpi":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `shmring run` ends the others, too; the calls are measured here
    comm = shmring.init()
    one = {"gloo": lambda: bench.Gloo(comm, folder), "mpi": lambda: bench.Mpi(comm)}.get(library)
    one = one() if one else bench.Ours("shmring", comm)
    statement, names = one.statement("all_reduce", np.zeros(1000), np.zeros(0))
    call = compile(statement, "call", "exec")
    comm.barrier()
    stamp = Path(folder, "killed")
    if comm.rank == comm.size - 1:
        for _ in range(CALLS):
            exec(call, names)
        stamp.write_text(str(time.monotonic_ns()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(10**9):
            exec(call, names)
    except Exception as error:
        us = (time.monotonic_ns() - int(stamp.read_text())) / 1e3
        print(f"{us} {type(error).__name__}: {error}".partition("\n")[0], flush=True)
        os._exit(0)


def survivors_of(library, python, nranks):
    """Microseconds, and what a survivor saw."""
    processors = sorted(allowed_processors())
    with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
        by_mpi = [str(Path(python).with_name("mpiexec"))]
        shmring_run = [python, "-m", "shmring", "run", "--grace", "10"]
        launcher = [*(by_mpi if library == "mpi" else shmring_run), "-n", str(nranks)]
        command = [*launcher, python, __file__, "--rank", library, folder]
        environment = bench.mpi_environment(nranks, processors) | {"OMP_NUM_THREADS": "1"}
        job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            printed = job.communicate(timeout=WAIT_S)[0]
        except subprocess.TimeoutExpired:
            job.terminate()
            return [], f"waits for more than {WAIT_S} s"
        if found := re.findall(r"^([\d.]+) (.+)", printed, re.MULTILINE):
            return [float(us) for us, _ in found], found[0][1]
        return [(time.monotonic_ns() - int(Path(folder, "killed").read_text())) / 1e3], "is ended by the launcher"


def main():
    """Print a line for each library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=3)
    parser.add_argument("--cycles", type=int, default=8)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with mpi4py")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(*args.rank)
        return
    python = os.path.expanduser(args.python)
    has_mpi = subprocess.run([python, "-c", "import mpi4py"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    for library, is_here in (("shmring", True), ("gloo", find_spec("torch")), ("mpi", has_mpi)):
        if is_here:
            us, seen = [], ""
            for _ in range(args.cycles):
                more, seen = survivors_of(library, python if library == "mpi" else sys.executable, args.ranks)
                us += more
            print(
                f"{library:<8} {summary(us)['median'] / 1e3 if us else float('nan'):.3g} ms, "
                f"at most {max(us, default=float('nan')) / 1e3:.3g}; {seen}",
                flush=True,
            )


if "pytest" in sys.modules:
    from sides import output_of

    def test_a_killed_rank_is_seen(benchmark, tmp_path):
        """Once."""
        text = benchmark.pedantic(output_of, (tmp_path, sys.executable, __file__, "--cycles", "1"), rounds=1)
        assert "PeerLostError" in text


if __name__ == "__main__":
    main()
