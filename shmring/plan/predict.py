"""Predicted times: the plans of all ranks, run against an imagined machine of cores, links and latencies.

A discrete-event simulation. A rank moves bytes at its core's pace; bytes that it loads out of the outbox of a rank in
another domain go over the links that lie between, at a lower pace, and those who use one link at the same time share
what it carries. What a rank publishes or releases is seen by others a latency later, and to look at the counter of each
of many ranks takes time, too.

What is not in it: caches that overflow, memory of its own speed, other programs. A prediction tells plans apart; the
numbers are the machine's as far as its parameters are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from .hierarchy import Hierarchy
from .limits import DEFAULT_LIMITS, Limits
from .steps import ALL, SLOT, Await, Claim, Copy, Operand, Plan, Publish, Reduce, Release

# A link, in one direction: (level, from which of its domains).
Lane = tuple[int, int]
PUBLISHED, CONSUMED = 0, 1


@dataclass(frozen=True)
class Border:
    """What lies between the domains of one level.

    Attributes
    ----------
    bytes_per_second : float
        What a domain can send to all others together, and get from them.
    core_bytes_per_second : float
        What one core can load over it.
    latency : float
        Seconds until a store is seen on the other side.
    """

    bytes_per_second: float
    core_bytes_per_second: float
    latency: float


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes
    ----------
    hierarchy : Hierarchy
        Which ranks live together.
    borders : sequence of Border
        For each level of the hierarchy.
    core_bytes_per_second : float
        What a core loads and stores as long as it stays within its domain.
    latency : float
        Seconds until a store is seen by another core of the domain.
    step : float
        Seconds that a step costs beside its bytes.
    """

    hierarchy: Hierarchy
    borders: tuple[Border, ...]
    core_bytes_per_second: float = 2.0e10
    latency: float = 6e-8
    step: float = 1.5e-8

    def between(self, a: int, b: int) -> int:
        """How many borders lie between two ranks: those of the first so many levels."""
        return sum(level[a] != level[b] for level in self.hierarchy.levels)

    def seen_after(self, a: int, b: int) -> float:
        """Seconds until one rank sees another's store."""
        crossed = self.between(a, b)
        return self.borders[crossed - 1].latency if crossed else self.latency


class Work(NamedTuple):
    """Bytes moved between two waits: seconds if nobody else used the links, and bytes over each of them."""

    seconds: float
    lanes: dict[Lane, float]


def predict(plans: Sequence[Plan], host: Host, limits: Limits = DEFAULT_LIMITS) -> float:
    """Seconds from the moment at which all ranks make the call until the last one has its result."""
    return _Run(plans, host, limits).seconds()


class _Run:
    """Ranks are generators that yield `Work` to be done or (counter, rank, value) to be waited for."""

    def __init__(self, plans: Sequence[Plan], host: Host, limits: Limits) -> None:
        self.plans, self.host, self.limits = plans, host, limits
        self.size = len(plans)
        # What each rank said in PUBLISHED and CONSUMED, and when: ascending.
        self.said: tuple[list[list[tuple[int, float]]], ...] = (
            [[(0, 0.0)] for _ in plans],
            [[(0, 0.0)] for _ in plans],
        )
        self.seen = [([0] * self.size, [0] * self.size) for _ in plans]
        self.waiting: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.now = 0.0
        self.events: list[tuple[float, int, int]] = []
        self.order = count()
        self.busy: dict[int, tuple[Work, float]] = {}  # works that use links, and the seconds left of each
        self.speed: dict[int, float] = {}
        self.since = 0.0

    def seconds(self) -> float:
        scripts = [self.script(plan) for plan in self.plans]
        for r in range(self.size):
            self.at(0.0, r)
        while True:
            ready = self.next_rank()
            if ready is None:
                break
            rank = ready
            for want in scripts[rank]:
                if isinstance(want, Work):
                    if want.lanes:
                        self.share(rank, want)
                    else:
                        self.at(self.now + want.seconds, rank)
                    break
                which, whom, value = want
                when = self.seen_at(which, whom, rank, value)
                if when is None:
                    self.waiting.setdefault((which, whom), []).append((value, rank))
                    break
                if when > self.now:
                    self.at(when, rank)
                    break
        if any(self.waiting.values()):
            raise ValueError("the plans deadlock")
        return self.now

    # ---- time ----

    def at(self, when: float, rank: int) -> None:
        heapq.heappush(self.events, (when, next(self.order), rank))

    def next_rank(self) -> int | None:
        """Go to the next event, of those at known times and the works whose ends depend on who shares their links."""
        ends = {rank: self.since + left / self.speed[rank] for rank, (_, left) in self.busy.items()}
        first = min(ends, key=ends.__getitem__, default=None)
        if first is not None and (not self.events or ends[first] <= self.events[0][0]):
            self.pass_to(ends[first])
            del self.busy[first]
            self.slow_down()
            return first
        if not self.events:
            return None
        when, _, rank = heapq.heappop(self.events)
        self.now = when
        return rank

    def pass_to(self, when: float) -> None:
        """Let the works on links go on until then."""
        self.now = when
        for rank, (work, left) in self.busy.items():
            self.busy[rank] = (work, left - (when - self.since) * self.speed[rank])
        self.since = when

    def share(self, rank: int, work: Work) -> None:
        self.pass_to(self.now)
        self.busy[rank] = (work, work.seconds)
        self.slow_down()

    def slow_down(self) -> None:
        """A link that is asked for more than it carries slows all down that use it, in proportion."""
        asked: dict[Lane, float] = {}
        for work, _ in self.busy.values():
            for lane, nbytes in work.lanes.items():
                asked[lane] = asked.get(lane, 0) + nbytes / work.seconds
        pace = {lane: min(1.0, self.host.borders[lane[0]].bytes_per_second / rate) for lane, rate in asked.items()}
        self.speed = {rank: min(pace[lane] for lane in work.lanes) for rank, (work, _) in self.busy.items()}

    # ---- counters ----

    def seen_at(self, which: int, whom: int, rank: int, value: int) -> float | None:
        """When ``rank`` sees that the counter has this value; None if that is not known yet."""
        said = self.said[which][whom]
        if said[-1][0] < value:
            return None
        return next(when for reached, when in said if reached >= value) + self.host.seen_after(whom, rank)

    def say(self, which: int, rank: int, value: int) -> None:
        if value <= self.said[which][rank][-1][0]:
            return
        self.said[which][rank].append((value, self.now))
        left = []
        for wanted, waiter in self.waiting.pop((which, rank), []):
            if value >= wanted:
                self.at(self.now + self.host.seen_after(rank, waiter), waiter)
            else:
                left.append((wanted, waiter))
        if left:
            self.waiting[which, rank] = left

    # ---- what a rank does ----

    def script(self, plan: Plan) -> Iterator[Work | tuple[int, int, int]]:
        rank, others = plan.rank, [r for r in range(self.size) if r != plan.rank]
        steps = ((step, i) for loop in plan.loops for i in range(loop.times) for step in loop.steps)
        work = _Tally(self.host, rank)
        for step, i in steps:
            if isinstance(step, (Copy, Reduce)):
                work.add(plan, step)
                continue
            if not work.is_empty:
                yield work.take()
            value = step.round.at(i) + 1
            if isinstance(step, Publish):
                self.say(PUBLISHED, rank, value)
            elif isinstance(step, Release):
                self.say(CONSUMED, rank, value)
            else:
                which = PUBLISHED if isinstance(step, Await) else CONSUMED
                whom = others if isinstance(step, Claim) or step.ranks is ALL else step.ranks
                yield from self.look(which, rank, whom, value - (self.limits.nslots if which == CONSUMED else 0))
        if not work.is_empty:
            yield work.take()
        self.say(PUBLISHED, rank, plan.rounds)
        self.say(CONSUMED, rank, plan.rounds)

    def look(self, which: int, rank: int, whom: Sequence[int], value: int) -> Iterator[Work | tuple[int, int, int]]:
        """Wait for each, and pay for the looks: a line comes over from every rank whose count was not known."""
        known = self.seen[rank][which]
        looks = [r for r in whom if known[r] < value]
        for r in looks:
            yield which, r, value
        for r in looks:
            known[r] = max(n for n, when in self.said[which][r] if when <= self.now)
        if looks:
            # The processor has several such loads under way at a time.
            yield Work(sum(self.host.seen_after(r, rank) for r in looks) / 4, {})


class _Tally:
    """The work of one rank since its last wait."""

    def __init__(self, host: Host, rank: int) -> None:
        self.host, self.rank = host, rank
        self.seconds = 0.0
        self.lanes: dict[Lane, float] = {}

    @property
    def is_empty(self) -> bool:
        return not self.seconds

    def take(self) -> Work:
        work = Work(self.seconds, self.lanes)
        self.seconds, self.lanes = 0.0, {}
        return work

    def add(self, plan: Plan, step: Copy | Reduce) -> None:
        host = self.host
        if isinstance(step, Copy) and _is_void(plan, step):
            return
        self.seconds += host.step + sum(n for _, n in step.stores) / host.core_bytes_per_second
        for source, nbytes in step.loads:
            crossed = host.between(source.rank, self.rank) if source.space is SLOT else 0
            pace = host.borders[crossed - 1].core_bytes_per_second if crossed else host.core_bytes_per_second
            self.seconds += nbytes / pace
            for level in range(crossed):
                numbers = host.hierarchy.levels[level]
                for lane in ((level, 2 * numbers[source.rank]), (level, 2 * numbers[self.rank] + 1)):  # out of, into
                    self.lanes[lane] = self.lanes.get(lane, 0) + nbytes


def _is_void(plan: Plan, step: Copy) -> bool:
    """Whether a copy goes to where it comes from when the caller works in place."""
    dst, src = step.dst, step.src
    if SLOT in (dst.space, src.space) or plan.in_place is None:
        return False
    return _at(dst) == _at(src) + plan.in_place


def _at(operand: Operand) -> int:
    return operand.offset.start


# ---- machines to predict for: round numbers of the order that vendors and papers give, measured by nobody here ----


def two_sockets(size: int = 64) -> Host:
    """Two packages, each with one last-level cache for all its cores."""
    hierarchy = Hierarchy([tuple(2 * r // size for r in range(size))])
    return Host(hierarchy, (Border(5e10, 1.0e10, 1.4e-7),))


def two_sockets_of_caches(size: int = 64, caches: int = 4) -> Host:
    """Two packages, whose cores share last-level caches in clusters, ``caches`` a package."""
    hierarchy = Hierarchy(
        [tuple(2 * caches * r // size for r in range(size)), tuple(2 * r // size for r in range(size))]
    )
    return Host(hierarchy, (Border(5e10, 1.4e10, 1.1e-7), Border(5e10, 1.0e10, 2.0e-7)))


HOSTS = {"two-sockets": two_sockets, "two-sockets-of-caches": two_sockets_of_caches}
