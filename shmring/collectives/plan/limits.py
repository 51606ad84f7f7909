"""The limits that a plan must fit into, and the parameters of the cost model. Equal on all ranks of a communicator."""

from __future__ import annotations

from dataclasses import dataclass

LINE = 64  # bytes of a cache line; no two ranks store to the same one
# The sizes at which the first guess changes from one algorithm to another.
FIRST_GUESSES = frozenset({"one_shot_nbytes", "flat_reduce_nbytes", "hierarchical_nbytes"})


@dataclass(frozen=True)
class Costs:
    """The parameters of the cost model. The defaults are of the order measured between two near cores.

    Attributes
    ----------
    latency : float
        Seconds from a publish to the return of the await of another rank, when nothing hides it.
    bytes_per_second : float
        Bytes that one thread loads or stores per second while the slots are in cache.
    dispatch : float
        Seconds for a thread to wake two parked helper threads, which then wake two more each.
    """

    latency: float = 5e-7
    bytes_per_second: float = 1.2e11
    dispatch: float = 1e-5

    @property
    def sync_nbytes(self) -> float:
        """Bytes that a rank loads or stores in the time of a synchronisation."""
        return self.latency * self.bytes_per_second


@dataclass(frozen=True)
class Limits:
    """The size of the outbox, and from which sizes calls begin with which algorithm.

    Attributes
    ----------
    nslots, slot_nbytes : int
        Slots per outbox, at least 4 (the deepest pipeline has four rounds in flight), and bytes per slot, a multiple
        of 64 and at least 128.
    round_nbytes : int or None
        Most bytes that a rank stages in one round; None for a whole slot. Smaller: less cache, more synchronisations.
    one_shot_nbytes : int or None
        Largest all_reduce done in one shot; None to derive it from the costs.
    flat_reduce_nbytes : int or None
        Largest reduce done by the root alone; None to derive it.
    hierarchical_nbytes : int or None
        With several locality domains: largest collective (vector, or all blocks) with a flat plan; None to derive it.
    costs : Costs
    """

    nslots: int = 8
    slot_nbytes: int = 262144
    round_nbytes: int | None = None
    one_shot_nbytes: int | None = None
    flat_reduce_nbytes: int | None = None
    hierarchical_nbytes: int | None = None
    costs: Costs = Costs()

    def __post_init__(self) -> None:
        """Reject limits that no plan fits into."""
        if self.nslots < 4:
            raise ValueError(f"nslots is {self.nslots}; the pipelines need at least 4")
        if self.slot_nbytes < 2 * LINE or self.slot_nbytes % LINE:
            raise ValueError(f"slot_nbytes is {self.slot_nbytes}; it must be a multiple of {LINE}, at least {2 * LINE}")
        if self.round_nbytes is not None and self.round_nbytes < 2 * LINE:
            raise ValueError(f"round_nbytes is {self.round_nbytes}; it must be at least {2 * LINE}")

    @property
    def slack(self) -> int:
        """How many times the best limit may be smaller or larger than these: between, both algorithms are tried. 1: one
        of them was set by hand."""
        return 4 if all(getattr(self, name) is None for name in FIRST_GUESSES) else 1

    @property
    def capacity(self) -> int:
        """Bytes that a rank may stage in one round, in whole lines."""
        if self.round_nbytes is None:
            return self.slot_nbytes
        return min(self.slot_nbytes, self.round_nbytes // LINE * LINE)


DEFAULT_LIMITS = Limits()
