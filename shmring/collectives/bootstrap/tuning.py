"""Tuning: the message sizes at which the algorithm changes, and where each of these numbers comes from.

They depend on the machine. So every number that is not given as a setting is derived: from the cache sizes, which the
system knows, and from the latency between the ranks, which they measure (`shmring.collectives.bootstrap.calibrate`).
Numbers that must be equal on all ranks are computed by each rank from the same exchanged data.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shmring.collectives.bootstrap.calibrate import (
    MOST_THREADS,
    address_of,
    as_rendezvous_errors,
    barrier_ns,
    copies_ns,
    exchange,
    partners_ns,
    patient_ns,
    read_process,
)
from shmring.collectives.plan.choose import flat_reduce_limit, one_shot_limit
from shmring.collectives.plan.hierarchy import Hierarchy
from shmring.collectives.plan.limits import FIRST_GUESSES, Costs, Limits
from shmring.collectives.plan.thread_shares import split_limit
from shmring.config import Config, Internals
from shmring.core.base.lifecycle import in_child
from shmring.core.kernel.reduce import STORES
from shmring.core.placement.cpus import allowed_processors, processor_quota
from shmring.core.placement.latency_clusters import domains_by_times
from shmring.core.placement.locality import SEAT_NBYTES, Domains, Seat
from shmring.core.placement.numa import current_node
from shmring.core.placement.topology import last_level_nbytes
from shmring.errors import RendezvousError

if TYPE_CHECKING:
    from shmring.collectives.engine.engine import Engine

# What a synchronisation of a plan costs beyond a barrier: its steps, the fence, the last stores. About the same for two
# ranks near and far, and for four on two processors (docs/maintainers/experiments.md).
STEPS_S = 4e-7

# No two processors of a machine are farther apart. If ranks need not share a processor, a barrier that took longer was
# measured while some did for a moment, which must not determine the settings of a communicator.
FARTHEST_S = 2e-6

# A barrier of two ranks takes half of this if their processors share a cache, else twice.
NEAR_S = 2.5e-7

# With fewer processors per rank, helper threads only compete with the application's own.
LEAST_PROCESSORS = 4
# More are not faster: a few cores of a socket use all of its memory bandwidth.
MOST_BY_DEFAULT = 8

MASK_NBYTES = 1024  # of an affinity mask that are exchanged: no kernel numbers more than 8192 processors
MOST_TIMED = 512  # more ranks than these cannot exchange all their times in one eager message
NO_LIMIT = 1 << 62
COMPARED = (
    "one_shot_nbytes",
    "flat_reduce_nbytes",
    "hierarchical_nbytes",
    "nearness",
    "round_nbytes",
    "latency_us",
    "touch_gbs",
    "stores",
    "direct",
)


# By string instructions copies take several times as long on some processors, so these are only tried later.
GUESSED = "ordinary", "streaming", "prefetched"
KINDS = struct.Struct(f"<{len(GUESSED)}d")

_FORM = struct.Struct(f"<d{len(COMPARED)}d{MASK_NBYTES}sqq{SEAT_NBYTES}sq16sqq")

_process = secrets.token_bytes(16)  # no other process has it, in whichever PID namespace


@in_child
def _renew() -> None:
    global _process
    _process = secrets.token_bytes(16)


class RankInfo(NamedTuple):
    """The record that each rank sends to all: where it may run, the settings that must be equal, and its threads.

    Attributes
    ----------
    quota : float
        How many processors its control group may use, with all its processes; infinity: no limit.
    settings : tuple of float
        By `COMPARED`.
    processors : frozenset of int
        Its affinity mask.
    threads : int
        How many it asks for; below 1: derived from its processors.
    split_nbytes : int
        Messages from this size up are split among the threads; -1: derived.
    seat : Seat
    node : int
        Of its memory, according to the kernel.
    process : tuple of bytes and int
        A number that no other process has, and the pid: C code may fork without the hooks of Python.
    address : int
        Where that number is in the memory of the process.
    """

    quota: float
    settings: tuple[float, ...]
    processors: frozenset[int]
    threads: int = 1
    split_nbytes: int = -1
    seat: Seat = Seat()
    node: int = -1
    process: tuple[bytes, int] = (bytes(16), 0)
    address: int = 0

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
            *self.process,
            self.address,
        )

    @classmethod
    def unpack(cls, packed: bytes) -> RankInfo:
        """From the bytes of `pack`."""
        quota, *settings, mask, threads, split_nbytes, seat, node, token, pid, at = _FORM.unpack(packed)
        bits = int.from_bytes(mask, "little")
        processors = frozenset(n for n in range(bits.bit_length()) if bits >> n & 1)
        place = Seat.unpack(seat)
        return cls(quota, tuple(settings), processors, threads, split_nbytes, place, node, (token, pid), at)


@dataclass(frozen=True)
class Thresholds:
    """The settings of one communicator.

    Attributes
    ----------
    limits : Limits
        For plans; equal on all ranks.
    processors : float
        The number of processors that all ranks together can use.
    barrier_us : float
        Microseconds of a barrier in calibration; 0 if there is only one rank.
    past_cache_nbytes : int
        Outputs are stored past the cache if the arrays and outboxes of all ranks take half of this; in place, where
        their lines have just been read, if each array has this size. May differ between ranks.
    eager_nbytes : int
        Payloads up to this size travel as eager messages; equal on all ranks.
    why : dict of str to str
        For each setting where its value comes from.
    stores : int
        The number in `STORES` of the kind by which calls are made of which nothing is known; equal on all ranks.
    threads : int
        The threads of each rank for large messages (`team_size`); equal on all ranks.
    split_nbytes : float
        Messages from this size up are split among them; equal on all ranks.
    own_processors : float
        The processors of this rank, shared ones divided.
    domains : Domains
        Which ranks share caches, nodes and packages; equal on all ranks. None before calibration.
    levels : tuple of tuple of int
        The ways to divide the ranks, as in `Domains.levels`: by these domains, or by measured times; equal on all
        ranks.
    homes : tuple of int
        The NUMA node on which each rank ran in calibration; -1 if the kernel does not provide it.
    is_one_process : bool
        Whether the ranks, several, are threads of this process, so each can access the arrays of all.
    readable : tuple of int
        By rank: the process whose memory the kernel lets this rank read. Empty unless every rank may read all others'.
    """

    limits: Limits
    processors: float
    barrier_us: float
    past_cache_nbytes: int
    eager_nbytes: int
    why: dict[str, str]
    stores: int = 0
    threads: int = 1
    split_nbytes: float = float("inf")
    own_processors: float = 1.0
    domains: Domains | None = None
    levels: tuple[tuple[int, ...], ...] = ()
    homes: tuple[int, ...] = ()
    is_one_process: bool = False
    readable: tuple[int, ...] = ()

    @property
    def hierarchy(self) -> Hierarchy | None:
        """The domains that plans go by, of the coarsest level; None where there is one domain, or where there are more
        ranks than processors: there waiting costs more than any distance.
        """
        if not self.levels:
            return None
        crowded = self.limits.hierarchical_nbytes is None and len(self.levels[0]) > self.processors
        return None if crowded else Hierarchy(self.levels[-1])

    def report(self, size: int) -> dict[str, Any]:
        """For `Communicator.stats` of ``size`` ranks."""
        return {
            "one_shot_nbytes": int(min(one_shot_limit(size, self.limits), NO_LIMIT)),
            "flat_reduce_nbytes": int(min(flat_reduce_limit(size, self.limits), NO_LIMIT)),
            "hierarchical_nbytes": self.limits.hierarchical_nbytes,
            "domains": self.levels,
            "round_nbytes": self.limits.capacity,
            "past_cache_nbytes": self.past_cache_nbytes,
            "barrier_us": self.barrier_us,
            "latency_us": self.limits.costs.latency * 1e6,
            "touch_gbs": self.limits.costs.bytes_per_second / 1e9,
            "processors": self.processors,
            "why": dict(self.why),
        }


def calibrate(engine: Engine, config: Config, timeout: float | None, seat: Seat) -> Thresholds:
    """Measure, exchange the results, and derive the thresholds from them. Collective; right after the rendezvous.

    ``timeout``: seconds to wait for the others. Raises `PeerLostError` if a rank died meanwhile,
    `RendezvousTimeoutError` if one did not answer, `RendezvousError` if ranks have different settings or one failed.
    """
    timeout_ns = patient_ns(timeout)
    settings = tuple(float(getattr(config.internals, name)) for name in COMPARED)
    own = RankInfo(
        processor_quota() or float("inf"),
        settings,
        frozenset(allowed_processors()),
        config.threads,
        config.internals.split_nbytes,
        seat,
        current_node(),
        (_process, os.getpid()),
        address_of(_process),
    )
    with as_rendezvous_errors():
        packed = exchange(engine, own.pack(), timeout_ns)
        ranks = [RankInfo.unpack(p) for p in packed]
        _check_agreement(engine.name, ranks)
        processors = _processors(ranks)
        engine.spin_among(processors)  # before the first measurement
        own_ns = struct.pack("<d?", barrier_ns(engine, timeout_ns) if len(ranks) > 1 else 0, reads_all(ranks, config))
        barriers, reads = zip(*(struct.unpack("<d?", p) for p in exchange(engine, own_ns, timeout_ns)), strict=True)
        most_ns = max(barriers)
        stores = 0
        if len(ranks) > 1 and config.internals.stores < 0:
            own_row = KINDS.pack(*copies_ns(engine, tuple(map(STORES.index, GUESSED)), timeout_ns))
            stores = first_stores([KINDS.unpack(p) for p in exchange(engine, own_row, timeout_ns)])
        times = None
        if _measures_nearness(config.internals.nearness, ranks, processors):
            row = struct.Struct(f"<{len(ranks)}d")
            own_row = row.pack(*partners_ns(engine, timeout_ns))
            times = [row.unpack(p) for p in exchange(engine, own_row, timeout_ns)]
    found = derive(config, len(ranks), processors, most_ns / 1e3, last_level_nbytes())
    domains = Domains.of([info.seat for info in ranks])
    found = replace(
        found,
        stores=stores,
        domains=domains,
        levels=domains.levels if times is None else domains_by_times(times),
        homes=tuple(info.node for info in ranks),
        is_one_process=len(ranks) > 1 and len({info.process for info in ranks}) == 1,
        readable=tuple(info.process[1] for info in ranks) if all(reads) else (),
    )
    if times is not None:
        found.why["domains"] = "measured: round trips between the ranks"
    return with_team(found, ranks, packed.index(own.pack()))  # the first of several ranks with equal data will do


def reads_all(ranks: Sequence[RankInfo], config: Config) -> bool:
    """Whether the kernel lets this process read the memory of every rank. A setting that has all calls staged needs
    none of that."""
    if len(ranks) < 2 or config.internals.direct == 0:
        return False
    return all(read_process(info.process[1], info.address, len(info.process[0])) == info.process[0] for info in ranks)


def first_stores(times: Sequence[tuple[float, ...]]) -> int:
    """The number in `STORES` of the kind to begin with; ``times``: by rank and kind in `GUESSED`."""
    slowest = [max(column) for column in zip(*times, strict=True)]
    return STORES.index(GUESSED[slowest.index(min(slowest))])


def with_team(found: Thresholds, ranks: Sequence[RankInfo], rank: int) -> Thresholds:
    """Add the threads of each rank, and the largest of the sizes from which the ranks ask to split."""
    threads, each = team_size(ranks), processors_each(ranks)
    limit = split_limit(threads, found.limits.costs)
    why = dict(found.why)
    if ranks[rank].threads < 1:
        why["threads"] = f"derived: of the ranks that leave it open, one has only {min(each):g} processors to itself"
    if ranks[rank].split_nbytes < 0:
        why["split_nbytes"] = "derived: from here on it saves more than waking the helpers costs"
    return replace(
        found,
        why=why,
        threads=threads,
        split_nbytes=max(limit if info.split_nbytes < 0 else info.split_nbytes for info in ranks),
        own_processors=each[rank],
    )


def processors_each(ranks: Sequence[RankInfo]) -> list[float]:
    """The processors of each rank: a processor in the masks of several ranks is divided, and so is a quota."""
    holders = Counter(number for info in ranks for number in info.processors)
    # Rounded, so that thirds of processors add up to whole ones.
    shares = [round(sum(1 / holders[number] for number in info.processors), 6) for info in ranks]
    return [min(share, info.quota / len(ranks)) for share, info in zip(shares, ranks, strict=True)]


def team_size(ranks: Sequence[RankInfo], most: int = MOST_THREADS) -> int:
    """The threads of every rank for large messages: the least that any rank asks for, at most ``most``.

    A rank that leaves it open asks for half of its processors, from 2 to `MOST_BY_DEFAULT`, and for 1 thread if it has
    fewer than `LEAST_PROCESSORS`. A rank without peers has 1.
    """
    if len(ranks) < 2:
        return 1
    wanted = [
        info.threads if info.threads > 0 else min(int(n) // 2, MOST_BY_DEFAULT) if n >= LEAST_PROCESSORS else 1
        for info, n in zip(ranks, processors_each(ranks), strict=True)
    ]
    return min(*wanted, most)


def derive(config: Config, size: int, processors: float, barrier_us: float, cache_nbytes: int) -> Thresholds:
    """The thresholds for these measurements; ``cache_nbytes``: size of the last-level cache, 0 if not known."""
    why, inner = config.origins, config.internals
    costs = _costs(inner, size, processors, barrier_us, why)
    latency_us, touch_gbs = costs.latency * 1e6, costs.bytes_per_second / 1e9
    given = {name: n for name in ("round_nbytes", *FIRST_GUESSES) if (n := getattr(inner, name)) >= 0}
    by_costs = f"derived: {latency_us:.2f} us a synchronisation, {touch_gbs:.0f} GB/s a rank"
    why |= dict.fromkeys(FIRST_GUESSES - given.keys(), by_costs)
    limits = Limits(config.nslots, config.slot_nbytes, **given, costs=costs)
    # With more ranks than processors a barrier is slow because they take turns.
    eager, is_far = config.eager_limit(size), size <= processors and not are_near(barrier_us, size)
    if inner.eager_nbytes < 0:
        why["eager_nbytes"] = f"derived: every rank reads the messages of all {size} ranks"
        if is_far:
            # Each line has to be fetched from a far core before it can be written; slots of rounds need not.
            eager //= 2
            why["eager_nbytes"] += f", half of it where a barrier takes {barrier_us:.2f} us"
    if config.spin_us < 0:
        why["spin_us"] = f"derived: {size} ranks on {processors:g} processors"
    past_cache = inner.past_cache_nbytes
    if past_cache < 0:
        past_cache = cache_nbytes or NO_LIMIT
        known = "derived: the last-level cache" if cache_nbytes else "default: the last-level cache is not known"
        why["past_cache_nbytes"] = known
    return Thresholds(limits, processors, barrier_us, past_cache, eager, why)


def are_near(barrier_us: float, size: int) -> bool:
    """Whether ranks with a processor each share a cache, by the time of a barrier of ``size`` ranks."""
    return 1e-6 * barrier_us <= NEAR_S * (size - 1)


def _costs(given: Internals, size: int, processors: float, barrier_us: float, why: dict[str, str]) -> Costs:
    latency, touch = given.latency_us / 1e6, given.touch_gbs * 1e9
    if given.latency_us < 0:
        latency = (min(barrier_us / 1e6, FARTHEST_S) if size <= processors else barrier_us / 1e6) + STEPS_S
        why["latency_us"] = f"measured: {barrier_us:.2f} us a barrier after the rendezvous, and {STEPS_S * 1e6:.1f} us"
    if given.touch_gbs < 0:
        touch = Costs().bytes_per_second * min(1.0, processors / size)
        why["touch_gbs"] = f"derived: {size} ranks on {processors:g} processors"
    return Costs(latency, touch)


def _measures_nearness(nearness: int, ranks: Sequence[RankInfo], processors: float) -> bool:
    """Whether to measure which ranks are near one another: if a setting asks for it, or the system does not know."""
    size = len(ranks)
    if not 2 < size <= MOST_TIMED or nearness == 0:
        return False
    unknown = any(info.seat.cache < 0 for info in ranks)
    return nearness == 1 or (unknown and size <= processors)


def _processors(ranks: Sequence[RankInfo]) -> float:
    """The number of processors that the ranks together can use: each may be bound to some of them."""
    together = frozenset[int]().union(*(info.processors for info in ranks))
    return min(len(together), *(info.quota for info in ranks))


def _check_agreement(name: str, ranks: Sequence[RankInfo]) -> None:
    """Raise, alike on all ranks, if their settings differ."""
    found = []
    for i, setting in enumerate(COMPARED):
        values = [info.settings[i] for info in ranks]
        if len(set(values)) > 1:
            other = next(r for r, value in enumerate(values) if value != values[0])
            found.append(f"{setting} is {values[0]:g} on rank 0, {values[other]:g} on rank {other}")
    if found:
        raise RendezvousError(f"the ranks of {name!r} disagree: {'; '.join(found)}")
