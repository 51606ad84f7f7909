"""What the choice of variants costs: calls as shipped against the best of all fixed variants, interleaved.

For each row: a collective (or a ping_pong) of one size, private or shared arrays, inputs rewritten before each call.
One communicator makes its calls as shipped, others have one variant each fixed by settings; all take turns in slices of
a few milliseconds (20 calls at least, or what moves 256 MiB). Printed are the median times as shipped and of the best
fixed variant, their ratio (the median of turns), and that of their first 20 calls and of their first thousand (or what
takes 4 seconds), which are made in turns of 20. Then calls as shipped go on to a thousand (or 4 seconds), so that
the first ratio has no first trials in it. All are medians of three sets of communicators: the memory of each lies
elsewhere, so calls that are made alike differ. The least of many noisy times is too small; so the ratio of a set is
that to the variant which was the best in the other sets. Beside them stands the round trip between two ranks, as a
virtual machine's host may move its processors. Ranks are bound to processors.

    python bench/bench_choices.py                                        # all rows, an hour
    python bench/bench_choices.py --ranks 2 --calls all_reduce broadcast --sizes 1048576 --shared 0
    python bench/bench_choices.py --ranks 2 --calls broadcast --sizes 262144 --moves 5
                                                       # calls until the choice has followed moves of the ranks
"""

import argparse
import os
import statistics
import time

import numpy as np
from turns import PROCESSORS, compare, loop_of, pin, turn

import shmring
from shmring.collectives.plan.choose import FIRST_PIECE_NBYTES
from shmring.collectives.plan.kinds import COLLECTIVES

CALLS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "ping_pong",
)
SIZES = tuple(1 << bits for bits in range(12, 27, 2))
NO_STREAMING, ALL_STREAMING = {"past_cache_nbytes": 1 << 40}, {"past_cache_nbytes": 0}
OUTPUTS = {"cached": NO_STREAMING, "streaming": ALL_STREAMING}
FIRST_PIECE = {"round_nbytes": FIRST_PIECE_NBYTES}
STAGED = {
    f"{stores}, outputs {name}": {"stores": number, "direct": 0} | output | FIRST_PIECE
    for number, stores in enumerate(("ordinary", "streaming", "prefetched", "string", "exchange"))
    for name, output in OUTPUTS.items()
} | {
    f"{stores}, pieces of {nbytes >> 10} KiB": {"stores": number, "direct": 0, "round_nbytes": nbytes} | NO_STREAMING
    for number, stores in enumerate(("ordinary", "streaming", "prefetched", "string", "exchange"))
    for nbytes in (FIRST_PIECE_NBYTES // 4, 1 << 19)
}
DIRECT = {f"direct, outputs {name}": {"direct": 1} | output for name, output in OUTPUTS.items()}
SLICE_S, SLICE_NBYTES, CYCLES = 0.004, 256 << 20, 5
FIRST, FIRST_SECONDS, SETS = 20, 4.0, 3
STAYS, LEAST_STAY = 5, 600  # with --moves: stays of each call, and calls in each
COLUMNS = "call", "bytes", "arrays", "shipped us", "best us", "ratio", "first 20", "all", "trip us", "best; in use"
MOVE_COLUMNS = "call", "bytes", "place", "shipped us", "best us", "ratio", "after calls", "trip us", "best; in use"


def statement(comm, call, nbytes, is_shared):
    """A function that rewrites the inputs of this rank and makes one call."""
    make = comm.array if is_shared else np.copy
    x = make(np.full(nbytes // 4, 1, np.float32))
    parts = comm.size if nbytes // 4 % comm.size == 0 else 1
    blocks = x.reshape(parts, -1)
    if call == "ping_pong":
        other = comm.rank ^ 1

        def message():
            if comm.rank & 1:
                comm.recv(x, other)
                comm.send(x, other)
            elif other < comm.size:
                x.fill(comm.rank)
                comm.send(x, other)
                comm.recv(x, other)

        return message
    shape = {
        "all_gather": (comm.size, *x.shape),
        "gather": (comm.size, *x.shape),
        "reduce_scatter": blocks.shape[1:],
        "scatter": blocks.shape[1:],
        "all_to_all": blocks.shape,
    }.get(call)
    out = None if shape is None else make(np.zeros(shape, np.float32))
    source = blocks if call in ("reduce_scatter", "scatter", "all_to_all") else x
    made = getattr(comm, call)
    arguments = (source,) if out is None else (source, out)

    def collective():
        source.fill(comm.rank)
        made(*arguments)

    return collective


def row(comm, call, nbytes, is_shared, seconds):
    """The figures of one row, on every rank: medians of several sets of communicators."""
    kind, sharing = COLLECTIVES.get(call), comm._engine.sharing
    may_read = kind and sharing and sharing.reads_private(call, nbytes // kind.blocks_in.among(comm.size))
    fixed = STAGED | DIRECT if is_shared or may_read else STAGED
    sets = []
    with comm.dup() as other:  # the process computes the plans of a size once
        turn(other, loop_of(statement(other, call, nbytes, is_shared)), 1, warmup=0)
    for number in range(SETS):
        settings = {"shipped": {}} | fixed
        for name in list(settings)[: number * len(settings) // SETS]:  # the first has cold caches, slower memory
            settings[name] = settings.pop(name)
        groups = {name: comm.dup(**those) for name, those in settings.items()}
        runs = {name: statement(group, call, nbytes, is_shared) for name, group in groups.items()}
        loops = {name: loop_of(run) for name, run in runs.items()}
        begun = [{name: turn(comm, loop, FIRST, warmup=0) for name, loop in loops.items()}]
        longest = int(FIRST_SECONDS / (FIRST * 1e-6 * sum(begun[0].values())))
        for _ in range(min(longest, 1000 // FIRST) - 1):
            begun.append({name: turn(comm, loop, FIRST, warmup=0) for name, loop in loops.items()})
        settling = min(1000, int(FIRST_SECONDS / (1e-6 * begun[-1]["shipped"]))) - FIRST * len(begun)
        turn(comm, loops["shipped"], max(1, settling))
        calls = min(FIRST, max(1, SLICE_NBYTES // nbytes))
        slice_s = max(SLICE_S, calls * 1e-6 * begun[-1]["shipped"])
        cycle_s = 2 * calls * 1e-6 * sum(begun[-1].values())
        enough_s = max(seconds / SETS, CYCLES * cycle_s)
        found = compare(comm, runs, seconds=enough_s, cycles=1 << 30, slice_s=slice_s)
        programs = groups["shipped"].stats()["programs"]
        sets.append((begun, found, programs[-1]["variant"] if programs else {}))
        for group in groups.values():
            group.close()

    ratios = [{name: found.ratio("shipped", name) for name in fixed} for _, found, _ in sets]
    best = best_of(ratios)
    begins = [begun for begun, *_ in sets]
    trips = [trip for _, found, _ in sets for trip in found.trip_us]
    return {
        "us": {name: statistics.median(found.median(name) for _, found, _ in sets) for name in ("shipped", best)},
        "best": best,
        "ratio": statistics.median(one[best_of(ratios[:i] + ratios[i + 1 :])] for i, one in enumerate(ratios)),
        "first": statistics.median(begun[0]["shipped"] / begun[0][best] for begun in begins),
        "thousand": statistics.median(
            sum(us["shipped"] for us in begun) / sum(us[best] for us in begun) for begun in begins
        ),
        "variant": sets[-1][2],
        "trip": statistics.median(trips),
    }


def best_of(ratios):
    """The fixed variant to which the ratios of several sets are the largest."""
    return max(ratios[0], key=lambda name: statistics.median(one[name] for one in ratios))


def print_moves(comm, call, nbytes, seconds):
    """Put all ranks on one processor, and back: print for each stay the times at its end, as shipped and of the best
    fixed variant, and after how many calls those as shipped were as quick as in its second half."""
    fixed = {name: STAGED[name] for name in STAGED if name.endswith("cached")}
    groups = {"shipped": comm.dup()} | {name: comm.dup(**settings) for name, settings in fixed.items()}
    runs = {name: statement(group, call, nbytes, False) for name, group in groups.items()}
    run = loop_of(runs["shipped"])
    for stay in range(STAYS):
        place = ("a processor each", "one processor")[stay % 2]
        os.sched_setaffinity(0, {PROCESSORS[0 if stay % 2 else comm.rank % len(PROCESSORS)]})
        us, deadline = [], time.monotonic() + seconds / STAYS
        while len(us) * FIRST < LEAST_STAY or not comm.broadcast_object(time.monotonic() > deadline):
            us.append(turn(comm, run, FIRST, warmup=0))
        settled_us = statistics.median(us[len(us) // 2 :])
        after = FIRST * next(i for i in range(len(us)) if statistics.median(us[i : i + 5]) <= 1.1 * settled_us)
        variant = groups["shipped"].stats()["programs"][-1]["variant"]
        found = compare(comm, runs, seconds=seconds / STAYS, cycles=1 << 30, slice_s=SLICE_S)
        best = max(fixed, key=lambda name: found.ratio("shipped", name))
        if comm.rank == 0:
            times = f"{found.median('shipped'):.1f} | {found.median(best):.1f} | {found.ratio('shipped', best):.2f}"
            used = ", ".join(str(variant[name]) for name in ("stores", "output", "schedule"))
            trip_us = statistics.median(found.trip_us)
            print(f"| {call} | {nbytes} | {place} | {times} | {after} | {trip_us:.2f} | {best}; {used} |", flush=True)
    for group in groups.values():
        group.close()


def print_head(columns):
    print("|", " | ".join(columns), "|")
    print("|", " | ".join(["---"] * len(columns)), "|")


def rank_main(comm, arguments):
    if comm.size <= len(PROCESSORS):
        pin(comm.rank)
    if arguments.moves:
        if comm.rank == 0:
            print_head(MOVE_COLUMNS)
        for call in arguments.calls:
            for nbytes in arguments.sizes:
                print_moves(comm, call, nbytes, arguments.moves)
        return
    if comm.rank == 0:
        print(f"{comm.size} ranks, a barrier takes {comm.stats()['barrier_us']:.2f} us")
        print_head(COLUMNS)
    for call in arguments.calls:
        for nbytes in arguments.sizes:
            for is_shared in arguments.shared:
                if is_shared and call == "ping_pong":
                    continue
                found = row(comm, call, nbytes, is_shared, arguments.seconds)
                if comm.rank == 0:
                    shipped, best = found["us"]["shipped"], found["us"][found["best"]]
                    us = [f"{shipped:.1f}", f"{best:.1f}"]
                    ratios = [found["ratio"], found["first"], found["thousand"]]
                    kind = "shared" if is_shared else "private"
                    cells = [call, nbytes, kind, *us, *(f"{ratio:.2f}" for ratio in ratios), f"{found['trip']:.2f}"]
                    used = ", ".join(f"{value}" for key, value in found["variant"].items() if key != "threads")
                    print("|", " | ".join(map(str, cells)), f"| {found['best']}; {used} |", flush=True)


def main():
    """Run the rows that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--calls", nargs="+", choices=CALLS, default=CALLS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--shared", type=int, nargs="+", choices=(0, 1), default=[0, 1])
    parser.add_argument("--seconds", type=float, default=6.0, help="of interleaved slices for each row")
    parser.add_argument("--moves", type=float, default=0, help="seconds a row: ranks move to one processor and back")
    arguments = parser.parse_args()
    for n in arguments.ranks:
        shmring.spawn(rank_main, n, args=(arguments,))


if __name__ == "__main__":
    main()
