"""The settings of a communicator, their defaults, and the environment variables that change them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shmring.core.base.timeouts import timeout_ns

KIB = 1024
MOST_NBYTES = 1 << 48  # of any size: those of all slots and queues of a rank together are numbers of 64 bits

# Values of `placement`, which `shmring.core.placement.numa_policy` implements.
POLICY = r"auto|local|interleave|bind:[0-9]{1,4}"
POLICIES = "auto, local, interleave, or bind:N for node N"


def _setting(default: Any, is_valid: Callable[[Any], object], must_be: str) -> Any:
    return field(default=default, metadata={"is_valid": is_valid, "must_be": must_be})


def _is_timeout(value: float | None) -> bool:
    timeout_ns(value)  # raises
    return True


def _is_ring_size(nbytes: int) -> bool:
    return nbytes == -1 or (nbytes >= 4096 and not nbytes & (nbytes - 1))


@dataclass(frozen=True)
class Internals:
    """Settings for tests, benchmarks and diagnosis, which may change without notice, as may their variables.

    Those from ``one_shot_nbytes`` to ``touch_gbs``, and ``stores``, must be equal on all ranks; the rendezvous checks
    it.
    """

    eager_nbytes: int = _setting(-1, lambda n: -1 <= n <= 4096, "from 0 to 4096, or -1 for automatic")
    """Largest payload of an eager message, at most 4096; -1: derived from the number of ranks."""
    pair_queue_nbytes: int = _setting(-1, _is_ring_size, "-1 or a power of two from 4096 up")
    """Bytes of point-to-point messages in flight from one rank to one other; a power of two from 4096 up;
    -1: derived from the second-level cache and the number of ranks."""
    one_shot_nbytes: int = _setting(-1, lambda n: n >= -1, "0 or more bytes, or -1 for automatic")
    """Largest all-reduce with one synchronisation and more copying; -1: derived from the cost model."""
    flat_reduce_nbytes: int = _setting(-1, lambda n: n >= -1, "0 or more bytes, or -1 for automatic")
    """Largest reduce that the root makes alone; -1: derived from the cost model."""
    hierarchical_nbytes: int = _setting(-1, lambda n: n >= -1, "0 or more bytes, or -1 for automatic")
    """On machines with several locality domains (sockets, NUMA nodes, caches): largest collective that still
    uses a flat schedule; 0: hierarchical ones at every size; -1: measured times choose, from a first guess."""
    round_nbytes: int = _setting(-1, lambda n: n == -1 or n >= 128, "at least 128, or -1 for a whole slot")
    """Most bytes that a rank publishes in one round, at least 128; -1: a whole slot."""
    nearness: int = _setting(-1, lambda n: n in (-1, 0, 1), "1, 0, or -1 for automatic")
    """Whether the ranks measure their distances during the rendezvous: 1 yes, 0 no; -1: only where the system
    does not report which processors share a cache, and there is a processor for each rank."""
    latency_us: float = _setting(-1.0, lambda x: x == -1 or 0 <= x <= 1e9, "from 0 to 1e9, or -1 for measured")
    """Cost model: microseconds of a synchronisation; -1: measured during the rendezvous."""
    touch_gbs: float = _setting(-1.0, lambda x: x == -1 or 0 < x <= 1e6, "positive, at most 1e6, or -1 for automatic")
    """Cost model: bytes that a rank loads or stores per nanosecond; -1: derived from ranks and processors."""
    tick_ms: float = _setting(20.0, lambda x: 0 < x <= 60_000, "positive, at most a minute")
    """Longest sleep between two checks of the peers' liveness."""
    stores: int = _setting(-1, lambda n: n in range(-1, 5), "from 0 to 4, or -1 for automatic")
    """How outboxes and pair queues are written: 0 by ordinary stores, 1 by non-temporal ones, 2 by ordinary
    ones whose lines are prefetched, 3 by string instructions, 4 as 0, and large all-reduces by exchange; -1:
    learned."""
    direct: int = _setting(-1, lambda n: n in (-1, 0, 1), "1, 0, or -1 for automatic")
    """Whether large collectives access other ranks' arrays directly, shared ones, or private ones that the kernel
    copies: 1 yes; 0 no, they are staged, except those into one result of all ranks; -1: learned."""
    past_cache_nbytes: int = _setting(-1, lambda n: n >= -1, "0 or more bytes, or -1 for automatic")
    """Use non-temporal stores once the ranks' outputs together reach this size (in place: once each does); -1: the
    size of the last-level cache."""
    split_nbytes: int = _setting(-1, lambda n: n >= -1, "0 or more bytes, or -1 for automatic")
    """Smallest message that is split among the threads; the largest value of any rank counts; -1: derived
    from the cost model."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class Config:
    """Settings of one communicator.

    Every setting can be an argument of `init`, or the environment variable ``SHMRING_<SETTING>`` (upper case), which
    the argument overrides. `Internals` settings are passed by name in the same way.

    ``slot_nbytes`` and ``nslots`` must be equal on all ranks; the rendezvous checks it.
    """

    slot_nbytes: int = _setting(
        -1, lambda n: n == -1 or (n > 0 and n % 4096 == 0), "a positive multiple of 4096, or -1"
    )
    """Bytes in a slot of the outbox; a multiple of 4096. -1: derived from the second-level cache."""
    nslots: int = _setting(8, lambda n: n in (4, 8), "4 or 8")
    """Slots in the outbox: 4 or 8."""
    timeout: float | None = _setting(1800.0, _is_timeout, "a number of seconds, or None")
    """Seconds that a call waits for live peers; None: no limit. A dead peer is noticed at once in any case."""
    spin_us: float = _setting(-1.0, lambda x: x == -1 or 0 <= x <= 1e9, "from 0 to 1e9, or -1 for automatic")
    """Microseconds that a waiting rank spins before it yields and sleeps; -1: derived from ranks and processors."""
    huge_pages: int = _setting(-1, lambda n: n in (-1, 0, 1), "1, 0, or -1 for automatic")
    """Huge pages where a segment contains whole ones: 1 yes, 0 no; -1: unless the system's setting forbids them."""
    placement: str = _setting("auto", lambda text: re.fullmatch(POLICY, text), POLICIES)
    """NUMA node of the memory that this rank creates. ``auto``: the node of the rank that writes it, unless the program
    has set a memory policy; ``local``: the kernel's choice; ``interleave``: all nodes in turn; ``bind:N``: node N."""
    threads: int = _setting(-1, lambda n: n == -1 or 1 <= n <= 32, "from 1 to 32, or -1 for automatic")
    """Threads with which each rank makes large collectives, its own included, at most 32; 1: no helper threads; -1:
    derived from the processors per rank. All ranks use the smallest number that any of them could start."""
    allow_pickle: bool = _setting(True, lambda _: True, "true or false")
    """Whether Python objects may be received. Unpickling executes code that the peer sent."""
    internals: Internals = field(default_factory=Internals)
    """Settings for tests, benchmarks and diagnosis."""

    def __post_init__(self) -> None:
        _check(self)

    def changed(self, **overrides) -> Config:
        """A copy with other settings; unknown ones are a ``TypeError``, values out of range a ``ValueError``."""
        unknown = sorted(set(overrides) - SETTINGS.keys())
        if unknown:
            raise TypeError(f"unknown setting {unknown[0]!r}; known: {', '.join(SETTINGS)}")
        inner = {name: overrides[name] for name in overrides if name in _INTERNAL}
        outer = {name: overrides[name] for name in overrides if name not in _INTERNAL}
        changed = replace(self, **outer, internals=replace(self.internals, **inner))
        return changed._with_origins(self.origins | dict.fromkeys(overrides, "argument"))

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
        if self.internals.eager_nbytes >= 0:
            return self.internals.eager_nbytes
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
        if self.internals.pair_queue_nbytes >= 0:
            return self.internals.pair_queue_nbytes
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


_INTERNAL = {one.name: one.default for one in fields(Internals)}
SETTINGS = {one.name: one.default for one in fields(Config) if one.name != "internals"} | _INTERNAL
"""The name of each setting, and its default."""

VARIABLES = {
    "SHMRING_SESSION": "The key that all ranks of a job share, where the launcher gives none; else part of it.",
    "SHMRING_TRACE": "The folder in which each rank records its calls, for ``shmring trace``.",
    "SHMRING_DUMP_SIGNAL": "The signal (``USR1``, ``SIGUSR1``, ``10``) on which a rank writes what all ranks do.",
    "SHMRING_WAIT_NOTES": "Seconds until a wait writes its first line on standard error; 0: none; 30 by default.",
    "SHMRING_FILE_PREFIX": "Up to 32 letters, digits and underscores: processes with different values see no names of "
    "each other.",
    "SHMRING_KERNEL": "The instruction set of reductions, a name of `shmring.kernels`; by default the widest here.",
    "SHMRING_LIVENESS": "``process-table``: notice deaths by pid and start time, not by the kernel's robust list.",
    "SHMRING_NODE": "The machine of this rank, for trying programs: ranks with different values share no memory.",
    "SHMRING_NODES": "The number of machines that the ranks behave as if on, in equal parts; ``shmring run --nodes``.",
    "SHMRING_TORCH_TAKEOVER": "``gloo``: groups of `torch.distributed` that ask for gloo are made by shmring.",
    "SHMRING_VLLM": "``1``: vLLM runs on shmring's platform, and its message queue is shmring's.",
    "SHMRING_VLLM_QUEUE": "``1``: vLLM's message queue is shmring's; ``0``: it is not, also with ``SHMRING_VLLM=1``.",
}
"""The other environment variables that shmring reads, and the meaning of each."""


def _check(settings: Config | Internals) -> None:
    for one in fields(settings):
        if not one.metadata:
            continue
        name, kind, value = one.name, type(one.default), getattr(settings, one.name)
        is_typed = isinstance(value, (int, float) if kind is float else kind)
        if isinstance(value, bool) and kind is not bool:
            is_typed = False
        if not is_typed and not (name == "timeout" and value is None):
            raise TypeError(f"{name}={value!r}: must be of type {kind.__name__}")
        if not one.metadata["is_valid"](value):
            raise ValueError(f"{name}={value!r}: must be {one.metadata['must_be']}")
        if name.endswith("_nbytes") and value > MOST_NBYTES:
            raise ValueError(f"{name}={value!r}: must be at most {MOST_NBYTES}")


def slot_for(second_level_nbytes: int) -> tuple[int, str]:
    """The size of a slot, and its derivation in words.

    The eight slots of an outbox are written in turn, and every rank reads each once. Together they get twice the
    second-level cache; with more, data is evicted to the next level before it is read
    (``docs/maintainers/experiments.md``).
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
    for name, default in SETTINGS.items():
        text = environ.get(f"SHMRING_{name.upper()}")
        if text is not None:
            settings[name] = _parse(name, text, type(default))
            origins[name] = f"SHMRING_{name.upper()}"
    try:
        config = Config().changed(**settings)
    except ValueError as error:  # begins with the name of the setting
        name, _, rest = str(error).partition("=")
        raise ValueError(f"SHMRING_{name.upper()}={rest}") from None
    return config._with_origins(origins).changed(**overrides)


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
