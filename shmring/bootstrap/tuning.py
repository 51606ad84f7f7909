"""Thresholds: from which size on what is done otherwise, and why there.

A number that is right on one machine is wrong on the next. So all that is not given as a setting is derived: from the
caches, which the system tells, and from the distance between the ranks, which they measure when they have met
(`shmring.bootstrap.calibrate`). What ranks must agree on follows from what all of them have heard from all, by the same arithmetic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shmring.bootstrap.calibrate import barrier_ns, exchange, partners_ns
from shmring.bootstrap.teamsize import Means, processors_each, team_size
from shmring.config import Config
from shmring.errors import AbortedError, CollectiveTimeoutError, MismatchError, RendezvousError, RendezvousTimeoutError
from shmring.placement.cpus import allowed_processors, processor_quota
from shmring.placement.latency_clusters import domains_by_times
from shmring.placement.locality import SEAT_NBYTES, Domains, Seat
from shmring.placement.numa import current_node
from shmring.placement.topology import last_level_nbytes
from shmring.plan.choose import flat_reduce_limit, one_shot_limit
from shmring.plan.hierarchy import Hierarchy
from shmring.plan.limits import DEFAULT_COSTS, Costs, Limits
from shmring.plan.thread_shares import split_limit

if TYPE_CHECKING:
    from shmring.engine.engine import Engine

# What a synchronisation of a plan takes beyond a barrier: its steps, the fence, the last stores on their way. Two ranks
# near and far and four on two processors all come to about this (docs/benchmarks.md).
STEPS_S = 4e-7

# A peer that has met and then stands still: how long the others wait for its part in the survey, at least.
PATIENCE_S = 1.0

# No two processors of a machine are farther apart. Where no ranks need to share one, a barrier that took longer met
# ranks that did so for the moment; a communicator must not go by that for all its life.
FARTHEST_S = 2e-6

# A barrier of two ranks whose processors share a cache takes half of this, of others twice.
NEAR_S = 2.5e-7

MASK_NBYTES = 512  # bits of an affinity mask that are told
MOST_TIMED = 512  # ranks of which each can tell all its times in one eager
NO_LIMIT = 1 << 62
SAID = (
    "one_shot_nbytes",
    "flat_reduce_nbytes",
    "hierarchical_nbytes",
    "nearness",
    "round_nbytes",
    "latency_us",
    "touch_gbs",
)


_FORM = struct.Struct(f"<d{len(SAID)}d{MASK_NBYTES}sqq{SEAT_NBYTES}sq")


class Account(NamedTuple):
    """What a rank says of itself: where it may run, the settings that must be equal, and what it asks for in a team."""

    quota: float
    settings: tuple[float, ...]
    processors: frozenset[int]
    threads: int = 1
    split_nbytes: int = -1
    seat: Seat = Seat()
    node: int = -1  # where its memory is, as the kernel says, whatever topology is forced

    def pack(self) -> bytes:
        """For `exchange`."""
        mask = sum(1 << number for number in self.processors if number < 8 * MASK_NBYTES)
        return _FORM.pack(
            self.quota,
            *self.settings,
            mask.to_bytes(MASK_NBYTES, "little"),
            self.threads,
            self.split_nbytes,
            self.seat.pack(),
            self.node,
        )

    @classmethod
    def unpack(cls, words: bytes) -> Account:
        """What `pack` made."""
        quota, *settings, mask, threads, split_nbytes, seat, node = _FORM.unpack(words)
        bits = int.from_bytes(mask, "little")
        processors = frozenset(n for n in range(bits.bit_length()) if bits >> n & 1)
        return cls(quota, tuple(settings), processors, threads, split_nbytes, Seat.unpack(seat), node)


@dataclass(frozen=True)
class Thresholds:
    """What one communicator goes by.

    Attributes
    ----------
    limits : Limits
        For plans; every number is there.
    costs : Costs
        What the limits were derived from. Equal on all ranks, as the limits are.
    processors : float
        How many processors all ranks together can keep busy.
    barrier_us : float
        Microseconds of a barrier when the ranks met; 0 if there is one rank only.
    past_cache_nbytes : int
        Outputs are stored past the cache if the arrays and outboxes of all ranks take half of this; in place, where
        their lines have just been read, if each array has this size. Each rank's own affair.
    eager_nbytes : int
        Payloads up to this size travel as eager messages; equal on all ranks.
    why : dict of str to str
        For each setting where its value comes from.
    threads : int
        How many each rank should have for large messages (`shmring.bootstrap.teamsize`); equal on all ranks.
    split_nbytes : float
        Messages from this size up are split among them; equal on all ranks.
    own_processors : float
        How many processors fall to this rank.
    domains : Domains
        Which ranks share caches, nodes and packages; equal on all ranks. None before the ranks have met.
    levels : tuple of tuple of int
        The ways to divide the ranks, as in `Domains.levels`: by these domains, or by measured times; equal on all
        ranks.
    homes : tuple of int
        The NUMA node on which each rank ran when they met; -1 where the kernel does not say.
    """

    limits: Limits
    costs: Costs
    processors: float
    barrier_us: float
    past_cache_nbytes: int
    eager_nbytes: int
    why: dict[str, str]
    threads: int = 1
    split_nbytes: float = float("inf")
    own_processors: float = 1.0
    domains: Domains | None = None
    levels: tuple[tuple[int, ...], ...] = ()
    homes: tuple[int, ...] = ()

    @property
    def hierarchy(self) -> Hierarchy | None:
        """The domains that plans go by; None where there is one, or where ranks take turns on the processors: there
        waiting is dearer than any distance.
        """
        if not self.levels:
            return None
        crowded = self.limits.hierarchical_nbytes is None and len(self.levels[0]) > self.processors
        return None if crowded else Hierarchy(self.levels)

    def report(self) -> dict[str, Any]:
        """For `Communicator.stats`."""
        return {
            "one_shot_nbytes": self.limits.one_shot_nbytes,
            "flat_reduce_nbytes": self.limits.flat_reduce_nbytes,
            "hierarchical_nbytes": self.limits.hierarchical_nbytes,
            "domains": self.levels,
            "round_nbytes": self.limits.capacity,
            "past_cache_nbytes": self.past_cache_nbytes,
            "barrier_us": self.barrier_us,
            "latency_us": self.costs.latency * 1e6,
            "touch_gbs": self.costs.bytes_per_second / 1e9,
            "processors": self.processors,
            "why": dict(self.why),
        }


def survey(engine: Engine, config: Config, timeout: float | None, seat: Seat) -> Thresholds:
    """Measure, tell, and derive. Collective: part of the rendezvous, right after it.

    Parameters
    ----------
    engine : Engine
    config : Config
    timeout : float, optional
        Seconds to wait for the others; None for ever.
    seat : Seat
        Where this rank sits.

    Raises
    ------
    PeerLostError
        A rank died meanwhile.
    RendezvousTimeoutError
        A rank came to the rendezvous and then stood still.
    RendezvousError
        Ranks have different settings, or one left with an error of its own.
    """
    timeout_ns = -1 if timeout is None else int(max(timeout, PATIENCE_S) * 1e9)
    settings = tuple(float(getattr(config, name)) for name in SAID)
    own = Account(
        processor_quota() or float("inf"),
        settings,
        frozenset(allowed_processors()),
        config.threads,
        config.split_nbytes,
        seat,
        current_node(),
    )
    with right_after_rendezvous():
        said = exchange(engine, own.pack(), timeout_ns)
        accounts = [Account.unpack(words) for words in said]
        _check_agreement(engine.name, accounts)
        processors = _processors(accounts)
        engine.spin_among(processors)  # before anything is measured
        own_ns = struct.pack("<d", barrier_ns(engine, timeout_ns) if len(accounts) > 1 else 0)
        (most_ns,) = max(struct.unpack("<d", words) for words in exchange(engine, own_ns, timeout_ns))
        times = None
        if _measures_nearness(config, accounts, processors):
            row = struct.Struct(f"<{len(accounts)}d")
            own_row = row.pack(*partners_ns(engine, timeout_ns))
            times = [row.unpack(words) for words in exchange(engine, own_row, timeout_ns)]
    found = derive(config, len(accounts), processors, most_ns / 1e3, last_level_nbytes())
    domains = Domains.of([a.seat for a in accounts])
    found = replace(
        found,
        domains=domains,
        levels=domains.levels if times is None else domains_by_times(times),
        homes=tuple(a.node for a in accounts),
    )
    if times is not None:
        found.why["domains"] = "measured: the times of words between the ranks"
    return with_team(found, accounts, said.index(own.pack()))  # or of one that says the same


@contextmanager
def right_after_rendezvous() -> Iterator[None]:
    """Turn what eager exchanges raise into what a rendezvous raises: to the caller of `init` they are one."""
    try:
        yield
    except CollectiveTimeoutError as error:
        raise RendezvousTimeoutError(f"{error} (right after the ranks had met)", error.late) from None
    except (AbortedError, MismatchError) as error:
        raise RendezvousError(f"{error} (right after the ranks had met)") from None


def with_team(found: Thresholds, accounts: Sequence[Account], rank: int) -> Thresholds:
    """With the threads that each rank should have, and the largest size to split from that any rank asks for."""
    ranks = [Means(a.threads, a.processors, a.quota) for a in accounts]
    threads, each = team_size(ranks), processors_each(ranks)
    limit = split_limit(threads, found.costs)
    why = dict(found.why)
    if accounts[rank].threads < 1:
        why["threads"] = f"derived: of the ranks that leave it open the poorest has {min(each):g} processors to itself"
    if accounts[rank].split_nbytes < 0:
        why["split_nbytes"] = "derived: what is saved pays for waking the helpers"
    return replace(
        found,
        why=why,
        threads=threads,
        split_nbytes=max(limit if a.split_nbytes < 0 else a.split_nbytes for a in accounts),
        own_processors=each[rank],
    )


def derive(config: Config, size: int, processors: float, barrier_us: float, cache_nbytes: int) -> Thresholds:
    """The thresholds that follow from what was found; ``cache_nbytes``: of the last-level cache, 0 if not known."""
    why = config.origins
    costs = _costs(config, size, processors, barrier_us, why)

    def given_or(name: str, derived: float, reason: str) -> int:
        value = getattr(config, name)
        if value >= 0:
            return value
        why[name] = reason
        return int(min(derived, NO_LIMIT))

    latency_us, touch_gbs = costs.latency * 1e6, costs.bytes_per_second / 1e9
    by_costs = f"derived: {latency_us:.2f} us a synchronisation, {touch_gbs:.0f} GB/s a rank"
    limits = Limits(
        nslots=config.nslots,
        slot_nbytes=config.slot_nbytes,
        round_nbytes=None if config.round_nbytes < 0 else config.round_nbytes,
        one_shot_nbytes=given_or("one_shot_nbytes", one_shot_limit(size, costs), by_costs),
        flat_reduce_nbytes=given_or("flat_reduce_nbytes", flat_reduce_limit(size, costs), by_costs),
        hierarchical_nbytes=None if config.hierarchical_nbytes < 0 else config.hierarchical_nbytes,
    )
    eager, is_far = config.eager_limit(size), 1e-6 * barrier_us > NEAR_S * (size - 1)
    if config.eager_nbytes < 0:
        why["eager_nbytes"] = f"derived: everyone reads the words of all {size} ranks"
        if is_far and size <= processors:  # else ranks take turns, which is no distance
            # Every line of it has to be fetched from a far core before it can be written; rounds need not.
            eager //= 2
            why["eager_nbytes"] += f", half of it where a barrier takes {barrier_us:.2f} us"
    if config.spin_us < 0:
        why["spin_us"] = f"derived: {size} ranks on {processors:g} processors"
    past_cache = given_or(
        "past_cache_nbytes",
        cache_nbytes or NO_LIMIT,
        "derived: the last-level cache" if cache_nbytes else "default: the last-level cache is not known",
    )
    return Thresholds(limits, costs, processors, barrier_us, past_cache, eager, why)


def _costs(config: Config, size: int, processors: float, barrier_us: float, why: dict[str, str]) -> Costs:
    latency, touch = config.latency_us / 1e6, config.touch_gbs * 1e9
    if config.latency_us < 0:
        latency = (min(barrier_us / 1e6, FARTHEST_S) if size <= processors else barrier_us / 1e6) + STEPS_S
        why["latency_us"] = f"measured: {barrier_us:.2f} us a barrier when the ranks met, and {STEPS_S * 1e6:.1f} us"
    if config.touch_gbs < 0:
        touch = DEFAULT_COSTS.bytes_per_second * min(1.0, processors / size)
        why["touch_gbs"] = f"derived: {size} ranks on {processors:g} processors"
    return Costs(latency, touch)


def _measures_nearness(config: Config, accounts: Sequence[Account], processors: float) -> bool:
    """Whether ranks find out by themselves who is near whom: if that is asked for, or the system does not tell."""
    size = len(accounts)
    if not 2 < size <= MOST_TIMED or config.nearness == 0:
        return False
    silent = any(account.seat.cache < 0 for account in accounts)
    return config.nearness == 1 or (silent and size <= processors)


def _processors(accounts: Sequence[Account]) -> float:
    """How many processors the ranks together can keep busy: each may be bound to some of them."""
    together = frozenset[int]().union(*(account.processors for account in accounts))
    return min(len(together), *(account.quota for account in accounts))


def _check_agreement(name: str, accounts: Sequence[Account]) -> None:
    """Raise, on all ranks alike, if their settings differ."""
    found = []
    for i, setting in enumerate(SAID):
        said = [a.settings[i] for a in accounts]
        if len(set(said)) > 1:
            other = next(r for r, value in enumerate(said) if value != said[0])
            found.append(f"{setting} is {said[0]:g} on rank 0, {said[other]:g} on rank {other}")
    if found:
        raise RendezvousError(f"the ranks of {name!r} disagree: {'; '.join(found)}")
