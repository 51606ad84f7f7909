"""The settings of a communicator, their defaults, and the environment variables that change them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields, replace

from shmring.base.timeouts import timeout_ns

KIB = 1024

# Values of `placement`, which `shmring.placement.numa_policy` implements.
POLICY = r"auto|local|interleave|bind:[0-9]{1,4}"
POLICIES = "auto, local, interleave, or bind:N for node N"


@dataclass(frozen=True)
class Config:
    """Settings of one communicator.

    Every setting can be an argument of `init`, or the environment variable ``SHMRING_<SETTING>`` (upper case); the
    argument wins. These are meant for users: ``timeout``, ``slot_nbytes``, ``nslots``, ``threads``, ``placement``,
    ``huge_pages``, ``spin_us``, ``allow_pickle``. All others are internal, for tests, benchmarks and diagnosis, and may
    change without notice, as may their environment variables.

    The settings from ``slot_nbytes`` to ``touch_gbs`` must be equal on all ranks; the rendezvous checks it.
    """

    slot_nbytes: int = -1
    """Bytes in a slot of the outbox; a multiple of 4096. -1: derived from the second-level cache."""
    nslots: int = 8
    """Slots in the outbox: 4 or 8."""
    eager_nbytes: int = -1
    """Internal. Largest payload of an eager message, at most 4096; -1: derived from the number of ranks."""
    pair_queue_nbytes: int = -1
    """Internal. Bytes of point-to-point messages in flight from one rank to one other; a power of two from 4096 up;
    -1: derived from the second-level cache and the number of ranks."""
    one_shot_nbytes: int = -1
    """Internal. Largest all-reduce with one synchronisation and more copying; -1: derived from the cost model."""
    flat_reduce_nbytes: int = -1
    """Internal. Largest reduce that the root makes alone; -1: derived from the cost model."""
    hierarchical_nbytes: int = -1
    """Internal. On machines with several locality domains (sockets, NUMA nodes, caches): largest collective that still
    uses a flat plan; 0: hierarchical plans at every size; -1: derived from the cost model."""
    round_nbytes: int = -1
    """Internal. Most bytes that a rank publishes in one round, at least 128; -1: a whole slot."""
    nearness: int = -1
    """Internal. Whether the ranks measure their distances during the rendezvous: 1 yes, 0 no; -1: only where the system
    does not report which processors share a cache, and there is a processor for each rank."""
    latency_us: float = -1.0
    """Internal. Cost model: microseconds of a synchronisation; -1: measured during the rendezvous."""
    touch_gbs: float = -1.0
    """Internal. Cost model: bytes that a rank loads or stores per nanosecond; -1: derived from ranks and processors."""

    timeout: float | None = 1800.0
    """Seconds that a call waits for live peers; None: no limit. A dead peer is noticed at once in any case."""
    spin_us: float = -1.0
    """Microseconds that a waiting rank spins before it yields and sleeps; -1: derived from ranks and processors."""
    tick_ms: float = 20.0
    """Internal. Longest sleep between two checks of the peers' liveness."""
    stores: int = -1
    """Internal. How outboxes and pair queues are written: 0 by ordinary stores, 1 by non-temporal ones, 2 by ordinary
    ones whose lines are prefetched, 3 by string instructions, 4 as 0, and large all-reduces by exchange; -1: learned,
    if all ranks have -1."""
    past_cache_nbytes: int = -1
    """Internal. Outputs are written with non-temporal stores if those of all ranks together have this size (in place:
    if each has); -1: the size of the last-level cache."""
    huge_pages: int = -1
    """Huge pages where a segment contains whole ones: 1 yes, 0 no; -1: unless the system's setting forbids them."""
    placement: str = "auto"
    """NUMA node of the memory that this rank creates. ``auto``: the node of the rank that writes it, unless the program
    has set a memory policy; ``local``: the kernel's choice; ``interleave``: all nodes in turn; ``bind:N``: node N."""
    threads: int = -1
    """Threads with which each rank makes large collectives, its own included, at most 32; 1: no helper threads; -1:
    derived from the processors per rank. All ranks use the smallest number that any of them could start."""
    split_nbytes: int = -1
    """Internal. Smallest message that is split among the threads; the largest value of any rank counts; -1: derived
    from the cost model."""
    allow_pickle: bool = True
    """Whether Python objects may be received. Unpickling executes code that the peer sent."""

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_type(field.name, type(field.default))
        if self.slot_nbytes != -1 and (self.slot_nbytes < 4096 or self.slot_nbytes % 4096):
            raise ValueError(f"slot_nbytes={self.slot_nbytes}: must be a positive multiple of 4096, or -1")
        if self.nslots not in (4, 8):
            raise ValueError(f"nslots={self.nslots}: must be 4 or 8")
        queue = self.pair_queue_nbytes
        if queue != -1 and (queue < 4096 or queue & (queue - 1)):
            raise ValueError(f"pair_queue_nbytes={queue}: must be -1 or a power of two from 4096 up")
        if not -1 <= self.eager_nbytes <= 4096:
            raise ValueError(f"eager_nbytes={self.eager_nbytes}: must be from 0 to 4096, or -1 for automatic")
        timeout_ns(self.timeout)
        sizes = ("one_shot_nbytes", "flat_reduce_nbytes", "hierarchical_nbytes", "past_cache_nbytes", "split_nbytes")
        for name in sizes:
            if getattr(self, name) < -1:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more bytes, or -1 for automatic")
        if self.round_nbytes != -1 and self.round_nbytes < 128:
            raise ValueError(f"round_nbytes={self.round_nbytes}: must be at least 128, or -1 for a whole slot")
        if not (self.latency_us == -1 or 0 <= self.latency_us <= 1e9):
            raise ValueError(f"latency_us={self.latency_us}: must be from 0 to 1e9, or -1 for measured")
        if not (self.touch_gbs == -1 or 0 < self.touch_gbs <= 1e6):
            raise ValueError(f"touch_gbs={self.touch_gbs}: must be positive, at most 1e6, or -1 for automatic")
        if not (self.spin_us == -1 or 0 <= self.spin_us <= 1e9):
            raise ValueError(f"spin_us={self.spin_us}: must be from 0 to 1e9, or -1 for automatic")
        if not 0 < self.tick_ms <= 60_000:
            raise ValueError(f"tick_ms={self.tick_ms}: must be positive, at most a minute")
        if not (self.threads == -1 or 1 <= self.threads <= 32):
            raise ValueError(f"threads={self.threads}: must be from 1 to 32, or -1 for automatic")
        if not re.fullmatch(POLICY, self.placement):
            raise ValueError(f"placement={self.placement!r}: must be {POLICIES}")
        if self.stores not in (-1, 0, 1, 2, 3, 4):
            raise ValueError(f"stores={self.stores}: must be from 0 to 4, or -1 for automatic")
        for name in ("huge_pages", "nearness"):
            if getattr(self, name) not in (-1, 0, 1):
                raise ValueError(f"{name}={getattr(self, name)}: must be 1, 0, or -1 for automatic")

    def _check_type(self, name: str, kind: type) -> None:
        value = getattr(self, name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return
        if name == "timeout" and value is None:
            return
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"{name}={value!r}: must be of type {kind.__name__}")

    def changed(self, **overrides) -> Config:
        """A copy with other settings; unknown ones are a ``TypeError``, values out of range a ``ValueError``."""
        known = [field.name for field in fields(self)]
        unknown = sorted(set(overrides) - set(known))
        if unknown:
            raise TypeError(f"unknown setting {unknown[0]!r}; known: {', '.join(known)}")
        return replace(self, **overrides)._with_origins(self.origins | dict.fromkeys(overrides, "argument"))

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each setting without its default: ``argument``, a variable, or a derivation in words."""
        return dict(self.__dict__.get("_origins", {}))

    def settled(self, second_level_nbytes: int) -> Config:
        """A copy in which the sizes that must be known before memory is created are derived where they are automatic.

        ``second_level_nbytes``: size of the second-level cache, 0 if unknown; equal on all ranks.
        """
        if self.slot_nbytes != -1:
            return self
        nbytes, why = slot_for(second_level_nbytes)
        return replace(self, slot_nbytes=nbytes)._with_origins(self.origins | {"slot_nbytes": why})

    def _with_origins(self, origins: dict[str, str]) -> Config:
        object.__setattr__(self, "_origins", origins)  # not a field: equality ignores it
        return self

    def eager_limit(self, size: int) -> int:
        """The largest eager payload of ``size`` ranks: every rank reads all of them, so it shrinks with ``size``."""
        if self.eager_nbytes >= 0:
            return self.eager_nbytes
        return 4 * KIB if size <= 4 else max(256, 16 * KIB // size)

    def wants_huge_pages(self, shmem_setting: str) -> bool:
        """Whether to request huge pages, given the system's setting for shared memory (empty: unknown)."""
        if self.huge_pages >= 0:
            return self.huge_pages == 1
        return shmem_setting not in ("", "never", "deny")

    def pair_queue_limit(self, size: int) -> int:
        """Bytes of the byte ring in each pair queue among ``size`` ranks.

        The size of eight slots, twice the second-level cache: the lines of such a ring have been evicted from the
        reader's second-level cache to the shared one before they are written again (taking them from the reader's
        cache costs three times as much), and it occupies no more of the shared cache than that needs. At least
        512 KiB, at most 2 MiB; less if all queues of a rank together would exceed 4 MiB.
        """
        if self.pair_queue_nbytes >= 0:
            return self.pair_queue_nbytes
        limit = 2048 * KIB
        while limit > 512 * KIB and limit > 8 * self.slot_nbytes > 0:
            limit //= 2
        while limit > 256 * KIB and limit * (size - 1) > 4096 * KIB:
            limit //= 2
        return limit

    def spin_ns(self, size: int, processors: float) -> int:
        """The spin budget: 0 where ranks outnumber processors, as the awaited rank may need this one's processor."""
        if self.spin_us >= 0:
            return int(self.spin_us * 1000)
        return 50_000 if size <= processors else 0


def slot_for(second_level_nbytes: int) -> tuple[int, str]:
    """The size of a slot, and its derivation in words.

    The eight slots of an outbox are written in turn, and every rank reads each once. Together they get twice the
    second-level cache; with more, data is evicted to the next level before it is read (``docs/experiments.md``).
    """
    if second_level_nbytes <= 0:
        return 256 * KIB, "default: the second-level cache is unknown"
    quarter = 1 << (second_level_nbytes // 4).bit_length() - 1 if second_level_nbytes >= 4 else 0
    nbytes = min(max(quarter, 128 * KIB), 512 * KIB)
    return nbytes, f"a quarter of {second_level_nbytes // KIB} KiB of second-level cache, from 128 to 512 KiB"


def configure(environ: dict[str, str] | os._Environ | None = None, **overrides) -> Config:
    """The defaults, changed by the environment, changed by ``overrides``.

    `TypeError` for an unknown setting, or an argument of another type; `ValueError` for a value out of range, or an
    environment variable that is not of the setting's type.
    """
    environ = os.environ if environ is None else environ
    settings = {}
    origins = {}
    for field in fields(Config):
        name = field.name
        text = environ.get(f"SHMRING_{name.upper()}")
        if text is not None:
            settings[name] = _parse(name, text, type(field.default))
            origins[name] = f"SHMRING_{name.upper()}"
    return Config().changed(**settings)._with_origins(origins).changed(**overrides)


def _parse(name: str, text: str, kind: type):
    if kind is str and not re.fullmatch(POLICY, text):
        raise ValueError(f"SHMRING_{name.upper()}={text!r}: {name} must be {POLICIES}")
    try:
        if name == "timeout" and text.lower() == "none":
            return None
        if kind is bool:
            return {"0": False, "1": True, "false": False, "true": True}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"SHMRING_{name.upper()}={text!r}: not a {kind.__name__}") from None
