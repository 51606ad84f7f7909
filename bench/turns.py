"""Contenders take turns of a few milliseconds, in an order drawn anew in each cycle: what disturbs one disturbs all.

The clock of the comparisons here; contenders are side by side in the ranks of one job (`compare`).
"""

import functools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


def calls_in(slice_s: float, timed: Callable[[int], float]) -> int:
    """The number of calls that fill a slice; ``timed(times)`` is the microseconds of one of so many."""
    times = 1
    for _ in range(6):
        wanted = int(slice_s * 1e6 / timed(times))
        if wanted <= 2 * times:
            return max(1, min(wanted, times))
        times = min(wanted, 32 * times)
    return times


def warmup_of(times: int) -> int:
    """Calls before the clock starts: caches hold data of others, and a processor that has slept is slow at first."""
    return (times + 1) // 2


def take_turns(
    slices: Mapping[str, Callable[[], float | None]], is_over: Callable[[int], bool], seed: object = 0
) -> dict[str, list[float]]:
    """Let contenders measure a slice each, cycle after cycle, until ``is_over(number of cycles)``.

    Returns
    -------
    dict
        Name -> the results of its slices. One whose slice is None, as it failed, takes no further turns.
    """
    order = random.Random(str(seed))
    found: dict[str, list[float]] = {name: [] for name in slices}
    ready, cycle = sorted(slices), 0
    while ready and not is_over(cycle):
        for name in order.sample(ready, len(ready)):
            result = slices[name]()
            if result is None:
                ready = [one for one in ready if one != name]
            else:
                found[name].append(result)
        cycle += 1
    return found


def summary(us: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    if len(us) == 1:
        return dict.fromkeys(("median", "q1", "q3", "min", "max"), us[0])
    q1, median, q3 = statistics.quantiles(us, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3, "min": min(us), "max": max(us)}


class Comparison(NamedTuple):
    """Microseconds of a call of each contender, and of two barriers (a round trip): one for each cycle."""

    us: dict[str, list[float]]
    trip_us: list[float]

    def summary(self, name: str) -> dict[str, float]:
        """Microseconds of a call of one contender: median, quartiles and extremes."""
        return summary(self.us[name])

    def median(self, name: str) -> float:
        """Microseconds of a call of one contender."""
        return self.summary(name)["median"]

    def ratio(self, name: str, to: str) -> float:
        """How many times as long one contender takes as another, cycle by cycle."""
        return statistics.median(a / b for a, b in zip(self.us[name], self.us[to], strict=True))


def loop_of(call: Callable[[], Any]) -> Callable[[int], Any]:
    """A function that makes so many calls in a row."""

    def loop(times: int) -> None:
        for _ in range(times):
            call()

    return loop


def compare(
    comm: Any,
    calls: Mapping[str, Callable[[], Any]],
    *,
    loops: Mapping[str, Callable[[int], Any]] | None = None,
    seconds: float = 1.0,
    cycles: int = 200,
    slice_s: float = 0.01,
) -> Comparison:
    """Time calls side by side in the ranks of a communicator, for so many seconds or cycles. All ranks call.

    ``loops`` are contenders that make so many calls by themselves.
    """
    trips: list[float] = []
    deadline = time.monotonic() + seconds
    trip = loop_of(comm.barrier)

    def is_over(cycle: int) -> bool:
        if comm.broadcast_object(cycle >= cycles or (cycle > 0 and time.monotonic() > deadline)):
            return True
        trips.append(2 * turn(comm, trip, 500))
        return False

    slices = {}
    for name, loop in {**{name: loop_of(call) for name, call in calls.items()}, **(loops or {})}.items():
        times = calls_in(slice_s, functools.partial(turn, comm, loop))
        slices[name] = functools.partial(turn, comm, loop, times, warmup_of(times))
    return Comparison(take_turns(slices, is_over), trips)


def turn(comm: Any, loop: Callable[[int], Any], times: int, warmup: int = 1) -> float:
    """Microseconds of a call on the slowest rank, after ``warmup`` calls. All ranks call."""
    loop(warmup)
    comm.barrier()
    start = time.perf_counter()
    loop(times)
    return max(comm.all_gather_object(time.perf_counter() - start)) / times * 1e6


PROCESSORS: Sequence[int] = sorted(os.sched_getaffinity(0))


def pin(rank: int, threads: int = 1) -> None:
    """Bind the calling thread to a processor, or to ``threads`` of them: its own, if there are enough for all ranks."""
    os.sched_setaffinity(0, {PROCESSORS[(rank * threads + k) % len(PROCESSORS)] for k in range(threads)})


@contextmanager
def pinned(rank: int, threads: int = 1) -> Iterator[None]:
    """Bind the calling thread for a while."""
    before = os.sched_getaffinity(0)
    pin(rank, threads)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
