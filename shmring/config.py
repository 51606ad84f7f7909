"""What can be set on a communicator, with its defaults and the environment variables that change them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields, replace

KIB = 1024

# Of placement; what becomes of it is told in `shmring.placement.numa_policy`.
POLICY = r"auto|local|interleave|bind:[0-9]{1,4}"
POLICIES = "auto, local, interleave, or bind:N for node N"


@dataclass(frozen=True)
class Config:
    """Settings of one communicator. Those of the first group must be equal on all ranks; rendezvous checks it.

    Every field can be set by the environment variable ``SHMRING_<FIELD>`` (upper case), or as an argument of `init`,
    which wins.
    """

    slot_nbytes: int = -1
    """Bytes in a slot of the outbox; a multiple of 4096. -1: derived from the second-level cache."""
    nslots: int = 8
    """Slots in the outbox: a power of two from 4 to 8."""
    eager_nbytes: int = -1
    """Payloads up to this size travel as eager messages, at most 4096; -1: derived from the number of ranks and
    their distance."""
    pair_queue_nbytes: int = -1
    """Bytes on their way from one rank to one other in point-to-point messages; a power of two from 4096 up, or -1:
    derived from the second-level cache and the number of ranks."""
    one_shot_nbytes: int = -1
    """All-reduces up to this size take one synchronisation and more copying; -1: derived from the cost model."""
    flat_reduce_nbytes: int = -1
    """Reduces up to this size are done by the root alone; -1: derived from the cost model."""
    hierarchical_nbytes: int = -1
    """On machines with several locality domains (sockets, NUMA nodes, caches): largest collective that still uses a
    flat plan; 0: hierarchical plans at every size, -1: derived from the cost model."""
    round_nbytes: int = -1
    """Most bytes a rank says in one round, at least 128; -1: a whole slot."""
    nearness: int = -1
    """Whether the ranks measure who is near whom when they meet: 1 yes, 0 no, -1 where the system does not say which
    processors share a cache, and each rank can have one."""
    latency_us: float = -1.0
    """The cost model's microseconds for a synchronisation that nothing hides; -1: measured while the ranks meet."""
    touch_gbs: float = -1.0
    """The cost model's bytes that a rank loads or stores per nanosecond; -1: derived from ranks and processors."""

    timeout: float | None = 1800.0
    """Seconds a call waits for peers that are alive; None: for ever. A dead peer is noticed at once, whatever this."""
    spin_us: float = -1.0
    """Microseconds of spinning before a waiting rank yields and sleeps; -1: derived from ranks and processors."""
    tick_ms: float = 20.0
    """Longest sleep without a look whether the others live."""
    streaming: int = -1
    """Non-temporal stores into the outbox: 1 yes (pays between cores that share no cache), 0 no, -1: learned, if all
    ranks leave it open."""
    past_cache_nbytes: int = -1
    """Outputs are stored past the cache if all ranks' together have this size (in place: if each has); -1: that of the
    last-level cache."""
    huge_pages: int = -1
    """Huge pages where a segment holds whole ones: 1 yes, 0 no, -1 unless the system's setting forbids them."""
    placement: str = "auto"
    """NUMA node of the memory this rank makes: ``auto``, the node of the rank that writes it, unless the program has
    set a memory policy; ``local``, where the kernel puts it; ``interleave``, all nodes in turn; ``bind:N``, node N."""
    threads: int = -1
    """Threads with which each rank makes large collectives, at most 32, its own included; 1: no helpers; -1: derived
    from the processors that fall to each rank. The ranks have as many as the one with the fewest."""
    split_nbytes: int = -1
    """Messages from this size up are made by all threads, if there are several; the largest that any rank sets counts;
    -1: derived from the cost model."""
    allow_pickle: bool = True
    """Whether Python objects may be received; unpickling runs what a peer sent."""

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_type(field.name, type(field.default))
        if self.slot_nbytes != -1 and (self.slot_nbytes < 4096 or self.slot_nbytes % 4096):
            raise ValueError(f"slot_nbytes={self.slot_nbytes}: must be a positive multiple of 4096, or -1")
        if self.nslots not in (4, 8):
            raise ValueError(f"nslots={self.nslots}: must be 4 or 8")
        if self.pair_queue_nbytes != -1 and (self.pair_queue_nbytes < 4096 or self.pair_queue_nbytes & (self.pair_queue_nbytes - 1)):
            raise ValueError(f"pair_queue_nbytes={self.pair_queue_nbytes}: must be -1 or a power of two from 4096 up")
        if not -1 <= self.eager_nbytes <= 4096:
            raise ValueError(f"eager_nbytes={self.eager_nbytes}: must be from 0 to 4096, or -1 for automatic")
        if self.timeout is not None and not self.timeout >= 0:
            raise ValueError(f"timeout={self.timeout}: must be seconds from 0 up, or None to wait for ever")
        for name in ("one_shot_nbytes", "flat_reduce_nbytes", "hierarchical_nbytes", "past_cache_nbytes"):
            if getattr(self, name) < -1:
                raise ValueError(f"{name}={getattr(self, name)}: must be bytes from 0 up, or -1 for automatic")
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
        if self.split_nbytes < -1:
            raise ValueError(f"split_nbytes={self.split_nbytes}: must be bytes from 0 up, or -1 for automatic")
        if not re.fullmatch(POLICY, self.placement):
            raise ValueError(f"placement={self.placement!r}: must be {POLICIES}")
        for name in ("streaming", "huge_pages", "nearness"):
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
        """Where fields come from that are no defaults: ``argument``, a variable, or what they are derived from."""
        return dict(self.__dict__.get("_origins", {}))

    def settled(self, second_level_nbytes: int) -> Config:
        """With the sizes that must stand before there is any memory, where they were left open.

        Parameters
        ----------
        second_level_nbytes : int
            Of the second-level cache, 0 if not known; equal on all ranks.
        """
        if self.slot_nbytes != -1:
            return self
        nbytes, why = slot_for(second_level_nbytes)
        return replace(self, slot_nbytes=nbytes)._with_origins(self.origins | {"slot_nbytes": why})

    def _with_origins(self, origins: dict[str, str]) -> Config:
        object.__setattr__(self, "_origins", origins)  # beside the fields: it makes no two settings differ
        return self

    def eager_limit(self, size: int) -> int:
        """The largest eager for which ``size`` ranks have room: everyone reads all, so it shrinks with them."""
        if self.eager_nbytes >= 0:
            return self.eager_nbytes
        return 4 * KIB if size <= 4 else max(256, 16 * KIB // size)

    def wants_huge_pages(self, shmem_setting: str) -> bool:
        """Whether to ask for huge pages, given the system's setting for shared memory (empty: not known)."""
        if self.huge_pages >= 0:
            return self.huge_pages == 1
        return shmem_setting not in ("", "never", "deny")

    def pair_queue_limit(self, size: int) -> int:
        """Bytes of the byte ring in each pair queue among ``size`` ranks.

        As many as eight slots, which come to twice the second-level cache: such a ring has left that cache, into the
        one that the ranks share, when its lines are written again (taking them back from the reader costs three times
        as much), and takes no more of the shared one than that needs. But from 512 KiB to 2 MiB, and the queues of one
        rank together, if all are used, stay near 4 MiB.
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
        """The spin budget: next to nothing where ranks outnumber processors, since the awaited one needs this core."""
        if self.spin_us >= 0:
            return int(self.spin_us * 1000)
        return 50_000 if size <= processors else 0


def slot_for(second_level_nbytes: int) -> tuple[int, str]:
    """The size of a slot, and why.

    The eight slots of an outbox are written in turn and each is read once by everyone. Twice the second-level cache for
    all of them is the most that stays about it; more falls through to the next level (``docs/benchmarks.md``).
    """
    if second_level_nbytes <= 0:
        return 256 * KIB, "default: the second-level cache is not known"
    quarter = 1 << (second_level_nbytes // 4).bit_length() - 1 if second_level_nbytes >= 4 else 0
    nbytes = min(max(quarter, 128 * KIB), 512 * KIB)
    return nbytes, f"a quarter of {second_level_nbytes // KIB} KiB of second-level cache, from 128 to 512 KiB"


def configure(environ: dict[str, str] | os._Environ | None = None, **overrides) -> Config:
    """The defaults, changed by the environment, changed by ``overrides``.

    Raises
    ------
    TypeError
        An unknown setting, or an argument of another type.
    ValueError
        A value out of range, or an environment variable that is not of the field's type.
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
