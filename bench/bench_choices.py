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
    python bench/bench_choices.py --ranks 2 --calls broadcast --sizes 262144 --moves 60
                                                       # calls until the choice has followed the host's moves
"""

import argparse
import itertools
import statistics
import time

import numpy as np

import shmring
from shmring.bench.turns import PROCESSORS, compare, loop_of, pin, turn

CALLS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "ping_pong")
SIZES = tuple(1 << bits for bits in range(12, 27, 2))
NO_STREAMING, ALL_STREAMING = {"past_cache_nbytes": 1 << 40}, {"past_cache_nbytes": 0}
OUTPUTS = {"cached": NO_STREAMING, "streaming": ALL_STREAMING}
STAGED = {
    f"{stores}, outputs {name}": {"stores": number, "direct": 0} | output
    for number, stores in enumerate(("ordinary", "streaming", "prefetched", "string", "exchange"))
    for name, output in OUTPUTS.items()
}
DIRECT = {f"direct, outputs {name}": {"direct": 1} | output for name, output in OUTPUTS.items()}
SLICE_S, SLICE_NBYTES, CYCLES = 0.004, 256 << 20, 5
FIRST, FIRST_SECONDS, SETS = 20, 4.0, 3
LEAST_STAY = 400  # calls in one place, for a move to count
COLUMNS = "call", "bytes", "arrays", "shipped us", "best us", "ratio", "first 20", "all", "trip us", "best; in use"


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
    out = {
        "all_gather": lambda: make(np.zeros((comm.size, *x.shape), np.float32)),
        "reduce_scatter": lambda: make(np.zeros(blocks.shape[1], np.float32)),
        "all_to_all": lambda: make(np.zeros(blocks.shape, np.float32)),
    }.get(call, lambda: None)()
    source = blocks if call in ("reduce_scatter", "all_to_all") else x
    made = getattr(comm, call)
    arguments = (source,) if out is None else (source, out)

    def collective():
        source.fill(comm.rank)
        made(*arguments)

    return collective


def row(comm, call, nbytes, is_shared, seconds):
    """The figures of one row, on every rank: medians of several sets of communicators."""
    fixed = STAGED | DIRECT if is_shared else STAGED
    sets = []
    with comm.dup() as other:  # the process computes the plans of a size once
        turn(other, loop_of(statement(other, call, nbytes, is_shared)), 1, warmup=0)
    for number in range(SETS):
        settings = {"shipped": {}} | fixed
        for name in list(settings)[: number * len(settings) // SETS]:  # the first has colder caches and memory
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
    """Print after how many calls streaming stores came into use, or went out of it, when the host moved processors."""
    run, trip = loop_of(statement(comm, call, nbytes, False)), loop_of(comm.barrier)
    looks, deadline = [], time.monotonic() + seconds
    turn(comm, run, FIRST)
    while not comm.broadcast_object(time.monotonic() > deadline):
        is_streaming = comm.stats()["programs"][-1]["variant"]["stores"] == "streaming"
        looks.append((2 * turn(comm, trip, 50), is_streaming))
        turn(comm, run, FIRST, warmup=0)
    trips = [statistics.median(trip_us for trip_us, _ in looks[max(i - 2, 0) : i + 3]) for i in range(len(looks))]
    near, far = sorted(trips)[len(trips) // 20], sorted(trips)[-len(trips) // 20]
    places = []  # whether the processors are far, and whether stores are streaming there, look by look
    for is_far, part in itertools.groupby(zip(trips, looks, strict=True), lambda look: look[0] ** 2 > near * far):
        places.append((is_far, [is_streaming for _, (_, is_streaming) in part]))
    took = []
    for (_, before), (is_far, here) in itertools.pairwise(places):
        if min(len(before), len(here)) * FIRST >= LEAST_STAY:
            settled = statistics.mode(here[len(here) // 2 :])
            took.append((is_far, FIRST * next(i for i in range(len(here)) if set(here[i : i + 5]) == {settled})))
    if comm.rank == 0:
        print(f"{call} of {nbytes} bytes, {FIRST * len(looks)} calls, round trips of {near:.2f} and {far:.2f} us")
        for name, is_far in (("to far", True), ("to near", False)):
            print(f"{name}, calls: {sorted(n for where, n in took if where == is_far)}", flush=True)


def rank_main(comm, arguments):
    if comm.size <= len(PROCESSORS):
        pin(comm.rank)
    if arguments.moves:
        for call in arguments.calls:
            for nbytes in arguments.sizes:
                with comm.dup() as other:
                    print_moves(other, call, nbytes, arguments.moves)
        return
    if comm.rank == 0:
        print(f"{comm.size} ranks, a barrier takes {comm.stats()['barrier_us']:.2f} us")
        print("|", " | ".join(COLUMNS), "|")
        print("|", " | ".join(["---"] * len(COLUMNS)), "|")
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
    parser.add_argument("--moves", type=float, default=0, help="seconds of a call while the host moves processors")
    arguments = parser.parse_args()
    for n in arguments.ranks:
        shmring.spawn(rank_main, n, args=(arguments,))


if __name__ == "__main__":
    main()
