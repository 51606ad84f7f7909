"""What the files here share: processes side by side, and their figures. The clock is `turns`."""

import os
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path

from turns import pin, pinned

import shmring

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for `support`, in programs


@contextmanager
def beside(function, *args, rank=1, threads=1):
    """``function(*args)`` in a forked process on the processor of ``rank``; this one is on that of rank 0."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            pin(rank, threads)
            function(*args)
            status = 0
        finally:
            os._exit(status)
    with pinned(0, threads):
        yield pid
        assert os.waitpid(pid, 0)[1] == 0


@contextmanager
def ranks(follow, size=2, threads=1):
    """Rank 0 of a new communicator; the other ranks are forked and do ``follow(comm)``. All are pinned."""
    session = uuid.uuid4().hex

    def other(rank):
        follow(shmring.init(rank=rank, size=size, session=session, threads=threads))

    with ExitStack() as stack:
        for rank in range(1, size):
            stack.enter_context(beside(other, rank, rank=rank, threads=threads))
        yield stack.enter_context(shmring.init(rank=0, size=size, session=session, threads=threads))


def note(benchmark, nbytes, messages):
    """What a round moves, beside its time."""
    benchmark.extra_info.update(nbytes=nbytes, messages=messages)
    if benchmark.stats:
        seconds = benchmark.stats.stats.median
        benchmark.extra_info.update(us_each=1e6 * seconds / messages, gb_per_s=nbytes * messages / seconds / 1e9)


def print_table(title, compared):
    """Median and quartiles of each contender in microseconds, and the ratio to the first."""
    first = next(iter(compared.us))
    print(f"\n{title:<34}{'median':>10}{'quartiles':>20}{'ratio':>8}{'above':>9}")
    for name in compared.us:
        low, middle, high = (compared.summary(name)[key] for key in ("q1", "median", "q3"))
        above = middle - compared.median(first)
        print(f"  {name:<32}{middle:>10.3f}{low:>11.3f}-{high:<8.3f}{compared.ratio(name, first):>8.2f}{above:>9.3f}")


def output_of(tmp_path, *command, **variables):
    """What a program here prints, with the shmring that this process has; the checkout need not be compiled."""
    env = {**os.environ, "PYTHONPATH": str(Path(shmring.__file__).parent.parent), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_of(nranks, program, *args):
    """The command ``shmring run`` of a program with its arguments."""
    return [sys.executable, "-m", "shmring", "run", "-n", str(nranks), program, *args]
