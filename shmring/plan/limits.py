"""What a plan has to fit into, and what the machine is assumed to cost. Equal on all ranks of a communicator."""

from __future__ import annotations

from dataclasses import dataclass

LINE = 64  # bytes of a cache line; what two ranks write never shares one


@dataclass(frozen=True)
class Limits:
    """The outbox, and thresholds that override what the cost model would choose.

    Attributes
    ----------
    nslots, slot_nbytes : int
        Slots per outbox, at least 4 (the deepest pipeline has four rounds in flight), and bytes per slot, a multiple
        of 64 and at least 128.
    round_nbytes : int or None
        Most bytes a rank says in one round; None for a whole slot. Smaller: less cache, more synchronisations.
    one_shot_nbytes : int or None
        Largest all_reduce done in one shot; None to derive it from `Costs`.
    flat_reduce_nbytes : int or None
        Largest reduce done by the root alone; None to derive it.
    hierarchical_nbytes : int or None
        Where ranks live in several domains: largest collective (vector, or all blocks) whose plan does not care; None
        to derive it.
    """

    nslots: int = 8
    slot_nbytes: int = 262144
    round_nbytes: int | None = None
    one_shot_nbytes: int | None = None
    flat_reduce_nbytes: int | None = None
    hierarchical_nbytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no plan fits into."""
        if self.nslots < 4:
            raise ValueError(f"nslots is {self.nslots}; the pipelines need at least 4")
        if self.slot_nbytes < 2 * LINE or self.slot_nbytes % LINE:
            raise ValueError(f"slot_nbytes is {self.slot_nbytes}; it must be a multiple of {LINE}, at least {2 * LINE}")
        if self.round_nbytes is not None and self.round_nbytes < 2 * LINE:
            raise ValueError(f"round_nbytes is {self.round_nbytes}; it must be at least {2 * LINE}")

    @property
    def capacity(self) -> int:
        """Bytes a rank may say in one round: whole lines."""
        if self.round_nbytes is None:
            return self.slot_nbytes
        return min(self.slot_nbytes, self.round_nbytes // LINE * LINE)


@dataclass(frozen=True)
class Costs:
    """The machine as the cost model sees it. The defaults are of the order measured between two near cores.

    Attributes
    ----------
    latency : float
        Seconds from one rank's publish to another's awakening, when nothing hides it.
    bytes_per_second : float
        Bytes one thread loads or stores per second while staging is in cache.
    dispatch : float
        Seconds in which a thread wakes two parked ones of its team, which then wake two others each.
    link_bytes_per_second : float
        Bytes per second that all ranks of a domain together load from other domains, or these from it. The default is
        of the order that vendors give for two sockets, and for the clusters of one; measured by nobody here.
    """

    latency: float = 5e-7
    bytes_per_second: float = 1.2e11
    dispatch: float = 1e-5
    link_bytes_per_second: float = 5e10


DEFAULT_LIMITS = Limits()
DEFAULT_COSTS = Costs()
