"""Time channels and queues between two Python processes, in turn on the same two processors.

python -m shmring.bench.channels                                  everything, some 40 seconds
python -m shmring.bench.channels --scenes round_trip,arrays --peers shmring,mp-pipe
python -m shmring.bench.channels --json result.json --plot result.png
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

from shmring.bench.channels import scenes
from shmring.bench.channels.peers import PEERS, find

SIZES = (8, 64, 1 << 10, 16 << 10, 64 << 10)
ARRAYS = (1 << 20, 16 << 20)

# Scene -> its title and its rows: a label, and the function that measures it.
Row = tuple[str, Callable[[scenes.Field], dict[str, dict]]]
SCENES: dict[str, tuple[str, list[Row]]] = {
    "throughput": (
        "thousand messages a second",
        [(f"{n} B", lambda field, n=n: scenes.throughput(field, n)) for n in SIZES],  # type: ignore[misc]
    ),
    "round_trip": ("round trip of 64 B, us: p50 / p99 / p99.9 / max", [("busy", scenes.round_trip)]),
    "think": (
        "the same with 1 ms between two round trips",
        [("1 ms", lambda field: scenes.round_trip(field, 0.001))],
    ),
    "batches": ("million records a second, 256 x 32 B", [("batches", scenes.batches)]),
    "arrays": (
        "GB a second",
        [(f"{n >> 20} MiB", lambda field, n=n: scenes.arrays(field, n)) for n in ARRAYS],  # type: ignore[misc]
    ),
    "idle": ("processor seconds a second, while waiting", [("idle", scenes.idle)]),
    "death": ("ms from SIGKILL of the sender to the receiver's error", [("death", scenes.death)]),
}


def shown(result: dict[str, Any]) -> str:
    """The results of one library in one row, as text."""
    if "p50_us" in result:
        return " / ".join(f"{result[key]:.3g}" for key in ("p50_us", "p99_us", "p999_us", "max_us"))
    if "gb_per_s" in result:
        return f"{result['gb_per_s']:.3g}"
    if "cpu_s_per_s" in result:
        return f"{result['cpu_s_per_s']:.4f}"
    if "error_after_s" in result:
        return "never" if result["error_after_s"] is None else f"{result['error_after_s'] * 1e3:.3g}"
    return f"{result['per_s'] / 1e6:.3g} M" if result["per_s"] >= 1e6 else f"{result['per_s'] / 1e3:.3g} k"


def main() -> int:
    """Run the scenes; 1 if shmring failed in one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", default=",".join(SCENES), metavar="NAMES", help=f"of {', '.join(SCENES)}")
    parser.add_argument("--peers", default=",".join(PEERS), metavar="NAMES", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--slices", type=int, default=8, metavar="N", help="turns of each library (default: 8)")
    parser.add_argument("--slice", type=float, default=30, metavar="MS", help="milliseconds of a turn (default: 30)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of turns")
    parser.add_argument("--json", metavar="FILE", help="write everything there")
    parser.add_argument("--plot", metavar="FILE", help="draw it (.png, .svg, .pdf); needs matplotlib")
    args = parser.parse_args()
    wanted, peers = args.scenes.split(","), args.peers.split(",")
    for asked, known in ((wanted, list(SCENES)), (peers, list(PEERS))):
        for name in asked:
            if name not in known:
                parser.error(f"there is no {name!r}; choose from {', '.join(known)}")
    allowed = sorted(os.sched_getaffinity(0))
    processors = (allowed[0], allowed[-1])
    there, missing = find(peers)
    for name, why in missing.items():
        print(f"{name}: cannot take part: {why}")
    print(f"processors {processors[0]} and {processors[1]} of {len(os.sched_getaffinity(0))}, {platform.platform()}")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processors[0]})
    field = scenes.Field(list(there), processors, args.slices, args.slice / 1e3, args.seed)
    rows, has_failed = [], False
    try:
        for scene in wanted:
            title, parts = SCENES[scene]
            print(f"\n{title}", flush=True)
            for label, run in parts:
                ns = [scenes.round_trip_ns(processors)]
                results = run(field)
                ns.append(scenes.round_trip_ns(processors))
                print(f"  {label}  [round trip of the processors {ns[0]:.0f} ns before, {ns[1]:.0f} ns after]")
                for name in there:
                    if name in results:
                        print(f"    {PEERS[name].title:<28} {shown(results[name])}")
                    else:
                        print(f"    {PEERS[name].title:<28} failed: {field.failures.get(name, 'nothing came')}")
                        has_failed |= name.startswith("shmring")
                sys.stdout.flush()
                rows.append({"scene": scene, "row": label, "round_trip_ns": ns, "results": results,
                             "failures": dict(field.failures)})  # fmt: skip
    finally:
        os.sched_setaffinity(0, before)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"when": time.strftime("%Y-%m-%d %H:%M"), "platform": platform.platform(), "python": sys.version,
                       "processors": processors, "versions": there, "missing": missing, "slices": args.slices,
                       "slice_ms": args.slice, "rows": rows}, out, indent=1)  # fmt: skip
    if args.plot:
        from shmring.bench.channels.plot import draw

        draw(rows, {name: PEERS[name].title for name in there}, args.plot)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
