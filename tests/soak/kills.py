"""Random kills: thousands of short jobs, each losing ranks by SIGKILL at random instants.

    python tests/soak/kills.py --jobs 10000 --seed 1

A job is a group of 2 to 4 processes with random settings that make random calls of all kinds (tests/stress/mixed.py),
each checked against a model, while one of them, or two, or all are killed at some instant of the first milliseconds of
their rendezvous, or, mostly, of what comes after it. One thing only may come of it: each survivor has right results
until it raises `PeerLostError` about one of the dead; or, if a rank died before it had come, an error of the
rendezvous. Some then shrink, and must have right results again. Counted as failures are hangs (a watchdog), names
left in /dev/shm by jobs that had met and lose one rank, names that `shmring.sweep` does not take away,
wrong results, and every other error.

Ranks are forked from this process, which has everything loaded, so a job takes some ten milliseconds.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [path for path in (str(TESTS), str(TESTS / "stress")) if path not in sys.path]

from mixed import carry_out, draw, settings  # noqa: E402
from support import harness  # noqa: E402  sets the environment of numerical libraries before NumPy loads
from support.inputs import NUMPY_DTYPES, pool_of  # noqa: E402

import shmring  # noqa: E402
from shmring import leftovers, sweep  # noqa: E402
from shmring.core.memory import names  # noqa: E402
from shmring.errors import PeerLostError, RendezvousError  # noqa: E402

OPERATIONS = 40
MANY_OPERATIONS = 2000  # longer than any rank lives
WATCHDOG_S = 60.0 * harness.PATIENCE
RENDEZVOUS_TIMEOUT_S = 0.5
LONGEST_LIFE_S = 0.012


class Job:
    """What one job does; all of it follows from (seed, number)."""

    def __init__(self, seed: int, number: int) -> None:
        dice = random.Random(f"{seed}/{number}/kills")
        self.seed, self.number = seed, number
        self.size = dice.choice((2, 3, 4))
        many = dice.choices((1, 2, self.size), (8, 2, 1))[0]
        self.victims = dice.sample(range(self.size), min(many, self.size))
        self.instants = sorted(dice.uniform(0, LONGEST_LIFE_S) for _ in self.victims)
        self.meets = dice.random() < 0.9
        self.shrinks = dice.random() < 0.4
        self.ends = dice.random() < 0.5  # by itself, if it lives so long
        self.session = f"kills{seed}-{number}-{os.getpid()}"

    def __str__(self) -> str:
        when = ", ".join(f"rank {r} after {1e3 * s:.3f} ms" for r, s in zip(self.victims, self.instants, strict=True))
        return f"job {self.number} of seed {self.seed}: {self.size} ranks, {when}{', shrinks' if self.shrinks else ''}"


# ---- a rank ----------------------------------------------------------------------------------------------------------


def live(job: Job, rank: int, report) -> None:
    """All that a rank does. ``report`` takes met, done, lost, apart (failed rendezvous) or wrong, and the reason."""
    config = settings(job.seed, job.number, job.size)
    names.NAME_PATIENCE_S = names.UNLINK_PATIENCE_S = WATCHDOG_S  # the dead have no lock
    try:
        # A rank that is killed before it comes is waited for; all others come, whenever that is.
        config["rendezvous_timeout"] = WATCHDOG_S / 2 if job.meets else RENDEZVOUS_TIMEOUT_S
        comm = shmring.init(rank=rank, size=job.size, session=job.session, **config)
    except (RendezvousError, PeerLostError) as error:
        report(f"apart {type(error).__name__}: {error}")
        return
    report("met")
    first = None
    for index in range(OPERATIONS if job.ends else MANY_OPERATIONS):
        case = draw(job.seed, job.number, index, comm.size, comm.config)
        try:
            carry_out(comm, case)
        except PeerLostError as error:
            first = error
            if comm.is_broken:  # else the error is of another group, and this communicator continues
                break
    else:
        comm.close()
        report("done")
        return
    try:
        comm.barrier()
    except PeerLostError as error:
        lost = error
    pids = [segment.header.pid for segment in comm._engine.segments]
    report(f"lost {lost.rank} {pids.index(lost.pid)} {pids.index(first.pid) if first.pid in pids else -1}")
    if job.shrinks:
        while True:
            try:
                comm = comm.shrink()
                for index in range(5):
                    carry_out(comm, draw(job.seed, job.number, OPERATIONS + index, comm.size, comm.config))
                report(f"shrunk {comm.size}")
                break
            except PeerLostError:  # one more has died meanwhile
                continue
    # Others may still need this one in their group of survivors: end only when they have all they want of it.
    comm.close()


def be_rank(job: Job, rank: int, pipe: int, dump) -> None:
    """Run `live` in a forked process and end it."""

    def report(words):
        os.write(pipe, (words.replace("\n", " ") + "\n").encode())

    def judge_unraisable(what):
        if not isinstance(what.exc_value, PeerLostError):  # that is what callbacks of work get, too
            report(f"wrong, raised in {what.object}: {what.exc_value!r}")

    status = 0
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.register(signal.SIGUSR1, dump, all_threads=True)
        sys.unraisablehook = judge_unraisable
        live(job, rank, report)
    except BaseException:
        with suppress(OSError):
            text = "wrong " + traceback.format_exc().replace("\n", " | ")
            os.write(pipe, (text[-3000:] + "\n").encode())
        status = 1
    finally:
        os._exit(status)


# ---- the driver ------------------------------------------------------------------------------------------------------


def play(job: Job, dump) -> tuple[Counter, list[str]]:
    """Run one job: counts of its outcomes, and a description of each failure."""
    counts: Counter = Counter()
    pipes, pids = [], []
    for rank in range(job.size):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            be_rank(job, rank, theirs, dump)
        os.close(theirs)
        pipes.append(ours)
        pids.append(pid)
    started = time.monotonic()
    output = dict.fromkeys(pipes, b"")
    if job.meets:
        listen(output, started + WATCHDOG_S, until=b"met\n")
    clock = time.monotonic()
    for victim, instant in zip(job.victims, job.instants, strict=True):
        time.sleep(max(0.0, clock + instant - time.monotonic()))
        os.kill(pids[victim], signal.SIGKILL)  # ended or not: it is ours to reap
    hung = listen(output, clock + WATCHDOG_S)
    failures = []
    for rank in [rank for rank, pipe in enumerate(pipes) if pipe in hung]:
        failures.append(f"rank {rank} hangs")
        counts["hangs"] += 1
        os.kill(pids[rank], signal.SIGUSR1)
        time.sleep(0.2)
        os.kill(pids[rank], signal.SIGKILL)
    for pipe, pid in zip(pipes, pids, strict=True):
        os.close(pipe)
        os.waitpid(pid, 0)
    words = [output[pipe].decode(errors="replace").splitlines() for pipe in pipes]
    survivors = [rank for rank in range(job.size) if rank not in job.victims]
    for rank in survivors:
        failures += judge(job, rank, words[rank], counts)
    met = all("met" in those for those in words)
    left = list(leftovers(job.session))
    if left:
        sweep(job.session)
        # The survivors unlink the names of a rank that dies during a rendezvous; if they have left before that, the
        # names remain for sweep().
        excused = not met or len(job.victims) > 1
        counts["jobs that left names to sweep()"] += excused
        if not excused or list(leftovers(job.session)):
            counts["leaks"] += 1
            failures.append(f"left in shared memory: {left}")
    counts["jobs that met" if met else "jobs that lost a rank while rendezvous"] += 1
    return counts, failures


def listen(output, deadline, until=None):
    """Read the reports until each rank has closed its pipe or reported ``until``; the pipes of those that have not."""
    awaited = set(output)
    while awaited and time.monotonic() < deadline:
        ready, _, _ = select.select(awaited, [], [], max(0.0, deadline - time.monotonic()))
        for pipe in ready:
            data = os.read(pipe, 1 << 16)
            output[pipe] += data
            if not data or (until is not None and until in output[pipe]):
                awaited.discard(pipe)
    return awaited


def judge(job, rank, words, counts):
    """The errors in the reports of a survivor."""
    failures = []
    for word in words:
        kind, _, rest = word.partition(" ")
        if kind == "wrong":
            counts["wrong results or errors"] += 1
            failures.append(f"rank {rank}: {rest}")
        elif kind == "lost":
            about, by_pid, first = map(int, rest.split())
            counts["survivors that named the dead"] += 1
            if not {about, by_pid} <= set(job.victims) or (first >= 0 and first not in job.victims):
                counts["wrong results or errors"] += 1
                failures.append(f"rank {rank} names ranks {rest}")
        elif kind == "shrunk":
            counts["survivors that went on"] += 1
        elif kind == "apart":
            counts["survivors of a failed rendezvous"] += 1
    if not words:
        counts["wrong results or errors"] += 1
        failures.append(f"rank {rank} reported nothing")
    return failures


def soak(jobs: int, seed: int, first: int = 0, progress=None) -> tuple[Counter, list[str]]:
    """Run that many jobs from number ``first`` on: totals, and the description of each that failed."""
    totals: Counter = Counter()
    stories = []
    for dtype in NUMPY_DTYPES:
        pool_of(dtype)
    gc.collect()
    gc.freeze()  # ranks share these pages
    with open(os.memfd_create("stacks"), "w+") as dump:
        for number in range(first, first + jobs):
            job = Job(seed, number)
            counts, failures = play(job, dump)
            totals += counts
            if failures:
                dump.seek(0)
                stories.append("\n  ".join([str(job), *failures, dump.read()]))
                dump.truncate(0)
            if progress and (number + 1) % 500 == 0:
                progress(f"{number + 1 - first} jobs, {len(stories)} failed")
    return totals, stories


def main(arguments=None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Short jobs with kills at random instants.")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first job, to repeat one or go on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args(arguments)
    started = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    totals, stories = soak(options.jobs, options.seed, options.first, lambda text: print(text, flush=True))
    for story in stories[:20]:
        print(story)
    print(f"{options.jobs} jobs in {time.monotonic() - started:.0f} s, seed {options.seed}")
    for what in sorted({*totals, "hangs", "leaks", "wrong results or errors"}):
        print(f"  {totals[what]:7d} {what}")
    return bool(stories)


if __name__ == "__main__":
    sys.exit(main())
