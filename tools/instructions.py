"""Count the instructions of the hot paths, and compare them with `tools/instructions.json`. Needs no quiet machine.

    python tools/instructions.py              status 1 if a path takes 2 % more than stored; names what has grown
    python tools/instructions.py --store      after a change on purpose

Rank 0 of two runs under valgrind's callgrind; rank 1 runs as usual, so it is there before rank 0 looks. Of several
calls the least count is taken: one without a wait. Settings pin the algorithm. Two numbers are compared for each path:
the instructions of shmring's own code, and all, with those of the interpreter, NumPy and libc. They depend on the
compiler and on Python, so there is a set of them for each pair.

Needs valgrind with its headers, a C compiler, and extensions built with SHMRING_SYMBOLS=1, for the names of functions.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

COMPILER = shlex.split(os.environ.get("CC", "cc"))
STORED = Path(__file__).with_suffix(".json")
MOST_GROWTH = 0.02
WARM, CALLS = 30, 40
TRIES = 5  # while there are more than stored: rank 1 may have had no processor
REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_ZERO_STATS; CALLGRIND_TOGGLE_COLLECT; }
void end(const char *name) { CALLGRIND_TOGGLE_COLLECT; CALLGRIND_DUMP_STATS_AT(name); }
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
"""
# The same way at each call on any processor, and no sleep: rank 0 is slow.
SETTINGS = {
    "stores": 0, "direct": 0, "nearness": 1, "latency_us": 0.2, "touch_gbs": 10, "threads": 1, "slot_nbytes": 256 << 10,
    "one_shot_nbytes": 16 << 10, "flat_reduce_nbytes": 16 << 10, "past_cache_nbytes": 1 << 30, "huge_pages": 0,
    "spin_us": 10_000_000, "timeout": 100,
}  # fmt: skip

Call = Callable[[], object]


def paths_of_ranks(comm) -> dict[str, Call]:
    """The collectives and messages, as both ranks call them."""
    small, large = np.ones(1), np.ones(16384, np.float32)
    letter = np.ones(8, np.uint8)

    def there_and_back() -> None:
        if comm.rank == 0:
            comm.send(letter, 1)
            comm.recv(letter, 1)
        else:
            comm.recv(letter, 0)
            comm.send(letter, 0)

    return {
        "all_reduce of 8 bytes": lambda: comm.all_reduce(small),
        "broadcast of 8 bytes": lambda: comm.broadcast(small),
        "all_reduce of 64 KiB": lambda: comm.all_reduce(large),
        "ping_pong of 8 bytes": there_and_back,
    }


def paths_here() -> dict[str, Call]:
    """The calls that need no other process."""
    import shmring

    sender, receiver = shmring.channel(1 << 16)
    q = shmring.Queue()
    data = bytes(64)
    return {
        "channel: send and recv of 64 bytes": lambda: (sender.send(data), receiver.recv()),
        "queue: put and get of an int": lambda: (q.put(1), q.get()),
    }


def run_rank(library: str | None) -> None:
    """One of the two ranks; the one with a library counts."""
    import shmring

    requests = ctypes.CDLL(library) if library else None
    if requests:
        requests.start()
    with shmring.init(**SETTINGS) as comm:
        calls = paths_of_ranks(comm) | (paths_here() if requests else {})
        for name, call in calls.items():
            for i in range(WARM + CALLS):
                if requests and i >= WARM:
                    time.sleep(0.001)  # until rank 1 is there
                    requests.begin()
                    call()
                    requests.end(name.encode())
                else:
                    call()


def costs(text: str) -> tuple[str, Counter]:
    """The name of a dump, and the instructions of each function of each object without what it calls."""
    names: dict[str, dict[str, str]] = {"ob": {}, "fn": {}}
    found: Counter = Counter()
    title, place = "", {"ob": "", "fn": ""}
    is_call = False
    for line in text.splitlines():
        if match := re.match(r"desc: Trigger: Client Request: (.*)", line):
            title = match[1]
        elif match := re.match(r"(c?)(ob|fn)=\((\d+)\)(?: (.*))?", line):
            callee, kind, number, name = match.groups()
            if name:
                names[kind][number] = name
            if not callee:
                place[kind] = names[kind][number]
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[+*\d-]", line):
            if not is_call:
                found[place["ob"], place["fn"]] += int(line.split()[1])
            is_call = False
    return title, found


def count(least: dict[str, Counter]) -> None:
    """Of each path the call with the fewest instructions, those counted before included."""
    with tempfile.TemporaryDirectory(prefix="shmring-instructions-") as folder:
        source, library = Path(folder, "requests.c"), Path(folder, "requests.so")
        source.write_text(REQUESTS)
        subprocess.run([*COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        environment = {**os.environ, "SHMRING_SESSION": uuid.uuid4().hex[:12], "WORLD_SIZE": "2", "PYTHONHASHSEED": "0"}
        command = [sys.executable, __file__, "--library"]
        valgrind = [
            "valgrind",
            "--tool=callgrind",
            "--quiet",
            "--collect-atstart=no",
            "--instr-atstart=no",
            f"--callgrind-out-file={folder}/counts",
        ]
        with subprocess.Popen([*command, ""], env={**environment, "RANK": "1"}) as peer:
            try:
                subprocess.run([*valgrind, *command, library], env={**environment, "RANK": "0"}, check=True)
            except BaseException:
                peer.kill()
                raise
        for dump in Path(folder).glob("counts.*"):
            name, found = costs(dump.read_text())
            if name and (name not in least or found.total() < least[name].total()):
                least[name] = found


def of_shmring(found: Counter) -> dict[str, int]:
    """The functions of shmring's extensions."""
    return {f"{Path(ob).name.partition('.')[0]}: {fn}": n for (ob, fn), n in found.items() if "/shmring/" in ob}


def toolchain() -> str:
    """What the numbers depend on."""
    asked = subprocess.run([*COMPILER, "-dumpfullversion"], capture_output=True, text=True, check=True)
    return f"cc {asked.stdout.strip()}, Python {platform.python_version()}, {platform.machine()}"


def numbers(found: Counter) -> dict[str, Any]:
    """As they are stored."""
    functions = of_shmring(found)
    return {"all": found.total(), "own": sum(functions.values()), "functions": functions}


def growth(now: dict[str, Any], was: dict[str, Any]) -> float:
    """The larger of the two, as a share; infinite if nothing is stored."""
    return max(now[kind] / was[kind] - 1 for kind in ("own", "all")) if was else float("inf")


def report(name: str, now: dict[str, Any], was: dict[str, Any]) -> None:
    """Print a path, and if it has grown too much, its functions that have."""
    change = "".join(f", {kind} {now[kind] / was[kind] - 1:+.1%}" for kind in ("own", "all")) if was else ", not stored"
    print(f"{name:38} own {now['own']:7}, all {now['all']:7}{change}")
    if was and growth(now, was) > MOST_GROWTH:
        grown = Counter({one: n - was["functions"].get(one, 0) for one, n in now["functions"].items()})
        for one, by in grown.most_common(8):
            if by > 0:
                print(f"    {by:+8} {one}")


def main() -> int:
    """Count, print, and compare or store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write what was counted")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.library is not None:
        run_rank(args.library)
        return 0
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    before = stored.get(toolchain(), {})
    least: dict[str, Counter] = {}
    for _ in range(TRIES):
        count(least)
        counted = {name: numbers(found) for name, found in sorted(least.items())}
        grown = [name for name, now in counted.items() if growth(now, before.get(name, {})) > MOST_GROWTH]
        if not grown and not args.store:
            break
    for name, now in counted.items():
        report(name, now, before.get(name, {}))
    if args.store:
        STORED.write_text(json.dumps({**stored, toolchain(): counted}, indent=1, sort_keys=True) + "\n")
        return 0
    if not before:
        print(f"no counts are stored of {toolchain()}: run --store on a commit that is known to be good")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
