"""Attacks on the public surface: random calls with random arguments on objects in every state.

    python tests/hostile/attack.py states --seed 7               every case of one kind
    python tests/hostile/attack.py all --seed 7 --cases 2000     so many of each kind
    python tests/hostile/attack.py cycles --seed 7 --case 31     one case again; prints its steps

What is attacked is the installed shmring, or with PYTHONPATH=. one that was built in place. Each case is a process of
its own. It fails if it crashes, hangs, leaks, or raises what no page documents.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import importlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_sharer
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [path for path in (str(HERE), str(HERE.parent)) if path not in sys.path]

from support import harness  # noqa: E402  sets the environment of numerical libraries before NumPy loads

from script import Script, watch_hooks  # noqa: E402  # isort: skip

KINDS = ("arguments", "states", "cycles", "fork", "handlers", "threads", "ranks", "shares")
# An interrupt of the hook for errors without a caller is none.
ERROR_AT_THE_END = re.compile(r"Exception ignored (?!in sys\.unraisablehook)|Fatal Python error")
LIMIT_S = 120.0  # of a case; only one that hangs takes so long
DEFECT = 3


@dataclass
class Failure:
    """A case that failed, and what it left behind."""

    kind: str
    seed: int
    case: int
    how: str
    steps: str

    def __str__(self) -> str:
        head = f"{self.how}: python tests/hostile/attack.py {self.kind} --seed {self.seed} --case {self.case}"
        return f"==== {head}\n{self.steps}"


# ---- in the process of a case ----


def live(kind: str, seed: int, case: int, log: int) -> int:
    """All of a case; the status to exit with. The interpreter then ends in the usual way."""
    os.setpgid(0, 0)  # so that the watchdog reaches the children of the case, too
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rng = random.Random(f"{seed}/{kind}/{case}")
    script = Script(rng, log)
    watch_hooks(script)
    ctypes.CFUNCTYPE(None)(print)  # for the first callback, libffi opens files that it keeps
    gc.collect()
    before = resources()
    attack = importlib.import_module(f"attack_{kind}").attack
    attack(script, case)
    for timer in signal.ITIMER_REAL, signal.ITIMER_PROF:  # a signal would end the interpreter after its handlers
        signal.setitimer(timer, 0)
    if rng.random() < 0.6 and not script.defects and not script.is_child:
        script.drop()
        report_leaks(script, before)
    else:
        sys.modules[__name__].kept = script  # the interpreter's end finds all objects alive
        script.write("# the interpreter ends")
    return DEFECT if script.defects else 0


def resources() -> dict[str, list]:
    """What this process holds that does not end by itself."""
    with open("/proc/self/maps") as maps:
        mapped = [line for line in maps if "shmring" in line and ".so" not in line]
    return {
        "descriptors": sorted(harness.open_files().values()),
        "mappings": mapped,
        "names": [name for name in os.listdir("/dev/shm") if os.environ["SHMRING_FILE_PREFIX"] in name],
        "threads": sorted(threads()),
    }


def threads() -> list[str]:
    """Names of the threads of this process, except for those that stay: they keep liveness words, and wait for ends."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:  # it may have ended
            names.append(file.read().strip())
    return [name for name in names if name not in ("shmring-keeper", "shmring-waiter")]


def report_leaks(script: Script, before: dict[str, list]) -> None:
    """All objects are gone: nothing may be left of them."""
    if script.interrupts:
        return
    resource_sharer.stop()  # multiprocessing's own thread, if ends have been pickled
    deadline = time.monotonic() + 60 * harness.PATIENCE
    while True:
        after = resources()
        left = {what: after[what] for what in after if len(after[what]) > len(before[what])}
        if script.leaves_names:
            left.pop("names", None)
        if not left:
            return
        if time.monotonic() > deadline:
            script.defect(f"left behind: {left}")
            return
        gc.collect()
        time.sleep(0.01)


# ---- outside of it ----


def run(kind: str, seed: int, cases, folder: Path, jobs: int = 2) -> list[Failure]:
    """Run cases in processes of their own, ``jobs`` at a time; the failures.

    In the process of a case it raises `SystemExit` with the status of the case.
    """
    running: dict[int, tuple[int, int, float]] = {}
    stuck = set()
    failures = []
    cases = iter(cases)
    while True:
        while len(running) < jobs and (case := next(cases, None)) is not None:
            log = os.open(folder / f"{kind}-{seed}-{case}.py", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            os.environ["SHMRING_FILE_PREFIX"] = f"hostile{os.getpid()}_{kind}{case}_"[:32]
            pid = os.fork()
            if pid == 0:
                os.chdir(folder)  # for files that a case makes
                sys.exit(live(kind, seed, case, log))
            running[pid] = case, log, time.monotonic() + LIMIT_S * harness.PATIENCE
        if not running:
            return failures
        for pid, (case, log, deadline) in list(running.items()):
            if time.monotonic() > deadline and pid not in stuck:
                stuck.add(pid)
                os.write(log, b"Timeout: where every thread is\n")
                os.killpg(pid, signal.SIGUSR1)  # faulthandler writes it
                time.sleep(0.5)
                os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[pid]
                failure = verdict(kind, seed, case, log, pid, os.waitstatus_to_exitcode(status))
                if failure:
                    failures.append(failure)
        time.sleep(0.002)


def verdict(kind: str, seed: int, case: int, log: int, pid: int, status: int) -> Failure | None:
    """What a case has shown; None if nothing."""
    steps = os.pread(log, 1 << 24, 0).decode(errors="replace")
    os.close(log)
    left = "processes left running" if end_group(pid) else ""
    prefix = f"hostile{os.getpid()}_{kind}{case}_"[:32]
    names = [name for name in os.listdir("/dev/shm") if prefix in name]
    for name in names:
        os.unlink(f"/dev/shm/{name}")
    if "\nTimeout: " in steps:
        how = "hung"
    elif status < 0:
        how = f"ended by {signal.Signals(-status).name}"
    elif status or "# DEFECT" in steps:
        how = "wrong error or leak"
    elif ERROR_AT_THE_END.search(steps):
        how = "error at the end"
    elif left or (names and "keeps the name" not in steps):
        how = left or f"names left: {names}"
    else:
        return None
    return Failure(kind, seed, case, how, steps)


def end_group(pid: int) -> bool:
    """End what a case has left running; whether there was anything that did not end by itself."""
    deadline = time.monotonic() + 60 * harness.PATIENCE
    while time.monotonic() < deadline:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    return True


def main(argv=None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Random calls with random arguments on objects in every state.")
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--case", type=int, help="this case alone")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep the steps of all cases here")
    options = parser.parse_args(argv)
    harness.load_shmring()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hostile"))
    folder.mkdir(exist_ok=True)
    cases = range(options.cases) if options.case is None else [options.case]
    failures = []
    print(f"seed {options.seed}", flush=True)
    for kind in KINDS if options.kind == "all" else [options.kind]:
        importlib.import_module(f"attack_{kind}")
        gc.collect()
        gc.freeze()
        started = time.monotonic()
        found = run(kind, options.seed, cases, folder, options.jobs)
        print(f"{kind}: {len(cases)} cases in {time.monotonic() - started:.1f} s, {len(found)} failed", flush=True)
        failures += found
    for failure in failures:
        print(failure)
    if options.folder is None:
        shutil.rmtree(folder)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
