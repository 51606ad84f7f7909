"""Predicted times: a discrete-event simulation of the plans of all ranks on a model of a machine.

A rank moves bytes at the speed of its core. Loads from the outbox of a rank in another domain use the links between the
two domains, at a lower speed; ranks that use a link at the same time share its bandwidth. Other ranks see a published
or released round one latency later, and loading the counters of many ranks takes time, too.

Not modelled: caches that overflow, memory bandwidth, other programs. Use a prediction to compare plans; its absolute
numbers are as good as the parameters of the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from shmring.plan.limits import DEFAULT_LIMITS
from shmring.plan.steps import ALL, SLOT, Await, AwaitRelease, Claim, Copy, Plan, Publish, Reduce, Release

# One direction of a link: (level, 2 * domain for bytes that leave the domain, 2 * domain + 1 for bytes that enter it).
LinkDirection = tuple[int, int]
PUBLISHED, CONSUMED = 0, 1
LOADS_IN_FLIGHT = 4


@dataclass(frozen=True)
class LinkModel:
    """The link between the domains of one level.

    Attributes
    ----------
    bytes_per_second : float
        Bandwidth from one domain to all others together, and the same in the other direction.
    core_bytes_per_second : float
        Bandwidth of one core that loads over the link.
    latency : float
        Seconds until a core on the other side sees a store.
    """

    bytes_per_second: float
    core_bytes_per_second: float
    latency: float


@dataclass(frozen=True)
class MachineModel:
    """A model of a machine.

    Attributes
    ----------
    levels : sequence of tuple of int
        The domain of every rank, for each way to divide the ranks, finest first.
    links : sequence of LinkModel
        One for each level.
    core_bytes_per_second : float
        Bandwidth of a core that loads and stores within its domain.
    latency : float
        Seconds until another core of the domain sees a store.
    step : float
        Fixed cost of a step, in seconds.
    """

    levels: tuple[tuple[int, ...], ...]
    links: tuple[LinkModel, ...]
    core_bytes_per_second: float = 2.0e10
    latency: float = 6e-8
    step: float = 1.5e-8

    def between(self, a: int, b: int) -> int:
        """The number of levels, from the finest, at which two ranks are in different domains."""
        return sum(level[a] != level[b] for level in self.levels)

    def seen_after(self, a: int, b: int) -> float:
        """Seconds until rank ``b`` sees a store of rank ``a``."""
        crossed = self.between(a, b)
        return self.links[crossed - 1].latency if crossed else self.latency


class Transfer(NamedTuple):
    """The bytes that a rank moves between two waits: seconds without contention, and bytes per link direction."""

    seconds: float
    link_nbytes: dict[LinkDirection, float]


def predict(plans: Sequence[Plan], machine: MachineModel) -> float:
    """Seconds from the moment at which all ranks make the call until the last one has its result."""
    return _Run(plans, machine).seconds()


class _Run:
    """Each rank is a generator that yields a `Transfer` to perform, or a (counter, rank, value) to wait for."""

    def __init__(self, plans: Sequence[Plan], machine: MachineModel) -> None:
        self.plans, self.machine = plans, machine
        self.size = len(plans)
        # The values each rank stored in its PUBLISHED and CONSUMED counters, and when; ascending.
        self.stored: tuple[list[list[tuple[int, float]]], ...] = (
            [[(0, 0.0)] for _ in plans],
            [[(0, 0.0)] for _ in plans],
        )
        self.seen = [([0] * self.size, [0] * self.size) for _ in plans]
        self.waiting: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.now = 0.0
        self.events: list[tuple[float, int, int]] = []
        self.order = count()
        self.busy: dict[int, tuple[Transfer, float]] = {}  # transfers that use links, and the remaining seconds of each
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
                if isinstance(want, Transfer):
                    if want.link_nbytes:
                        self.share(rank, want)
                    else:
                        self.at(self.now + want.seconds, rank)
                    break
                which, owner, value = want
                when = self.seen_at(which, owner, rank, value)
                if when is None:
                    self.waiting.setdefault((which, owner), []).append((value, rank))
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
        """Advance to the next event: one with a fixed time, or the end of a transfer that shares links."""
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
        """Advance all transfers on links to the time ``when``."""
        self.now = when
        for rank, (transfer, left) in self.busy.items():
            self.busy[rank] = (transfer, left - (when - self.since) * self.speed[rank])
        self.since = when

    def share(self, rank: int, transfer: Transfer) -> None:
        self.pass_to(self.now)
        self.busy[rank] = (transfer, transfer.seconds)
        self.slow_down()

    def slow_down(self) -> None:
        """Recompute speeds: an oversubscribed link slows all its transfers by the same factor."""
        asked: dict[LinkDirection, float] = {}
        for transfer, _ in self.busy.values():
            for direction, nbytes in transfer.link_nbytes.items():
                asked[direction] = asked.get(direction, 0) + nbytes / transfer.seconds
        links = self.machine.links
        pace = {d: min(1.0, links[d[0]].bytes_per_second / rate) for d, rate in asked.items()}
        self.speed = {rank: min(pace[d] for d in transfer.link_nbytes) for rank, (transfer, _) in self.busy.items()}

    # ---- counters ----

    def seen_at(self, which: int, owner: int, rank: int, value: int) -> float | None:
        """The time at which ``rank`` sees ``value`` in the counter; None if the owner has not stored it yet."""
        stored = self.stored[which][owner]
        if stored[-1][0] < value:
            return None
        return next(when for reached, when in stored if reached >= value) + self.machine.seen_after(owner, rank)

    def store(self, which: int, rank: int, value: int) -> None:
        if value <= self.stored[which][rank][-1][0]:
            return
        self.stored[which][rank].append((value, self.now))
        left = []
        for wanted, waiter in self.waiting.pop((which, rank), []):
            if value >= wanted:
                self.at(self.now + self.machine.seen_after(rank, waiter), waiter)
            else:
                left.append((wanted, waiter))
        if left:
            self.waiting[which, rank] = left

    # ---- the steps of a rank ----

    def script(self, plan: Plan) -> Iterator[Transfer | tuple[int, int, int]]:
        rank, others = plan.rank, [r for r in range(self.size) if r != plan.rank]
        steps = ((step, i) for loop in plan.loops for i in range(loop.times) for step in loop.steps)
        work = _Tally(self.machine, rank)
        for step, i in steps:
            if isinstance(step, (Copy, Reduce)):
                work.add(plan, step)
                continue
            if not work.is_empty:
                yield work.take()
            value = step.round.at(i) + 1
            if isinstance(step, Publish):
                self.store(PUBLISHED, rank, value)
            elif isinstance(step, Release):
                self.store(CONSUMED, rank, value)
            else:
                which = PUBLISHED if isinstance(step, Await) else CONSUMED
                ranks = others if isinstance(step, (Claim, AwaitRelease)) or step.ranks is ALL else step.ranks
                before = DEFAULT_LIMITS.nslots if isinstance(step, Claim) else 0
                yield from self.load(which, rank, ranks, value - before)
        if not work.is_empty:
            yield work.take()
        self.store(PUBLISHED, rank, plan.rounds)
        self.store(CONSUMED, rank, plan.rounds)

    def load(
        self, which: int, rank: int, ranks: Sequence[int], value: int
    ) -> Iterator[Transfer | tuple[int, int, int]]:
        """Wait for each of ``ranks``; each counter not yet known to have the value costs one cache-line transfer."""
        known = self.seen[rank][which]
        owners = [r for r in ranks if known[r] < value]
        for r in owners:
            yield which, r, value
        for r in owners:
            known[r] = max(n for n, when in self.stored[which][r] if when <= self.now)
        if owners:
            # A processor has several such loads in flight.
            yield Transfer(sum(self.machine.seen_after(r, rank) for r in owners) / LOADS_IN_FLIGHT, {})


class _Tally:
    """The bytes that one rank has moved since its last wait."""

    def __init__(self, machine: MachineModel, rank: int) -> None:
        self.machine, self.rank = machine, rank
        self.seconds = 0.0
        self.link_nbytes: dict[LinkDirection, float] = {}

    @property
    def is_empty(self) -> bool:
        return not self.seconds

    def take(self) -> Transfer:
        transfer = Transfer(self.seconds, self.link_nbytes)
        self.seconds, self.link_nbytes = 0.0, {}
        return transfer

    def add(self, plan: Plan, step: Copy | Reduce) -> None:
        machine = self.machine
        if isinstance(step, Copy) and _is_void(plan, step):
            return
        self.seconds += machine.step + sum(n for _, n in step.stores) / machine.core_bytes_per_second
        for source, nbytes in step.loads:
            crossed = machine.between(source.rank, self.rank) if source.space is SLOT else 0
            pace = machine.links[crossed - 1].core_bytes_per_second if crossed else machine.core_bytes_per_second
            self.seconds += nbytes / pace
            for level in range(crossed):
                numbers = machine.levels[level]
                for direction in ((level, 2 * numbers[source.rank]), (level, 2 * numbers[self.rank] + 1)):
                    self.link_nbytes[direction] = self.link_nbytes.get(direction, 0) + nbytes


def _is_void(plan: Plan, step: Copy) -> bool:
    """Whether source and destination of a copy are the same address when the caller works in place."""
    dst, src = step.dst, step.src
    if SLOT in (dst.space, src.space) or plan.in_place is None:
        return False
    return dst.offset.start == src.offset.start + plan.in_place


# ---- machine models: round numbers of the order given by vendors and papers, not measured by this project ----


def two_sockets(size: int) -> MachineModel:
    """Two packages, each with one last-level cache shared by all its cores."""
    return MachineModel((tuple(2 * r // size for r in range(size)),), (LinkModel(5e10, 1.0e10, 1.4e-7),))


def two_sockets_of_caches(size: int) -> MachineModel:
    """Two packages of four last-level caches each, every one shared by a cluster of cores."""
    levels = (tuple(8 * r // size for r in range(size)), tuple(2 * r // size for r in range(size)))
    return MachineModel(levels, (LinkModel(5e10, 1.4e10, 1.1e-7), LinkModel(5e10, 1.0e10, 2.0e-7)))


MACHINES = {"two-sockets": two_sockets, "two-sockets-of-caches": two_sockets_of_caches}
