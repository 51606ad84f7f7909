"""Sizes, medians, bandwidths, ratios. Pure functions."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

OPS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
    "ping_pong",
)

# What is measured of channels: the meaning of a figure, and the bytes of a message.
CHANNEL_OPS = {
    "message": ("microseconds per message", (8, 64, 1 << 10, 16 << 10, 64 << 10)),
    "array": ("microseconds per array", (1 << 20, 16 << 20)),
    "records": ("microseconds per batch of 256 records of 32 bytes", (8192,)),
    "round_trip": ("microseconds per round trip", (64,)),
    "think": ("microseconds per round trip, with 1 ms between two", (64,)),
    "idle": ("processor microseconds per second, while waiting", (64,)),
    "death": ("microseconds from the SIGKILL of a rank to another's error", (64,)),
}
ONCE = ("idle", "death")  # measured once, not in slices
DEFAULT_SIZES = "8,64,512,4Ki,16Ki,64Ki,256Ki,1Mi,4Mi,16Mi,64Mi"

_SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
_SUFFIXES = {"": 1, "k": 1 << 10, "ki": 1 << 10, "m": 1 << 20, "mi": 1 << 20, "g": 1 << 30, "gi": 1 << 30}


def parse_size(text: str) -> int:
    """``"4Ki"`` as bytes; Ki, Mi and Gi (or K, M, G) are powers of 1024."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*?)b?", text.strip().lower())
    if not match or match[2] not in _SUFFIXES or int(match[1]) < 1:
        raise ValueError(f"{text!r} is not a size: 8, 4Ki, 64Mi")
    return int(match[1]) * _SUFFIXES[match[2]]


def parse_sizes(text: str) -> list[int]:
    """Sizes in bytes, ascending: ``"8,4Ki,1Mi"``, or ``"8..64Mi"`` for both and the powers of four between."""
    sizes: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low = parse_size(first)
        high = parse_size(last) if dots else low
        if high < low:
            raise ValueError(f"{part!r} is a range that ends before it begins")
        sizes |= {low, high} | {4**power for power in range(32) if low < 4**power < high}
    return sorted(sizes)


def size_text(nbytes: int) -> str:
    """Bytes with a binary unit; exact."""
    for unit, power in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if nbytes and nbytes % (1 << power) == 0:
            return f"{nbytes >> power} {unit}B"
    return f"{nbytes} B"


def time_text(us: float | None) -> str:
    """Microseconds, with three significant digits."""
    if us is None:
        return "-"
    return f"{us:.2g}" if us < 0.0995 else f"{us:.2f}" if us < 9.995 else f"{us:.1f}" if us < 99.95 else f"{us:.0f}"


def bus_factor(op: str, size: int) -> float:
    """The fraction of the bytes that must move between ranks, as in nccl-tests (0: the call has no bytes)."""
    if op == "barrier":
        return 0.0
    if op == "all_reduce":
        return 2 * (size - 1) / size
    if op in ("reduce", "broadcast", "ping_pong") or op in CHANNEL_OPS:
        return float(op not in ONCE)
    return (size - 1) / size


def algorithm_bandwidth(op: str, nbytes: int, us: float) -> float:
    """Bytes of the problem in GB/s. A round trip moves them twice."""
    return (2 if op in ("ping_pong", "round_trip", "think") else 1) * nbytes / us / 1e3 if us else 0.0


def bus_bandwidth(op: str, nbytes: int, us: float, size: int) -> float:
    """Algorithm bandwidth times `bus_factor`: comparable between collectives and numbers of ranks."""
    return algorithm_bandwidth(op, nbytes, us) * bus_factor(op, size)


def summary(us: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    if len(us) == 1:
        return dict.fromkeys(("median", "q1", "q3", "min", "max"), us[0])
    q1, median, q3 = statistics.quantiles(us, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3, "min": min(us), "max": max(us)}


def percentiles(us: Sequence[float]) -> dict[str, float]:
    """The percentiles 50, 99 and 99.9 of the times, and the longest."""
    ordered = sorted(us)
    return {name: ordered[min(len(us) - 1, int(share * len(us)))] for name, share in _SHARES.items()}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of each cycle: changes between cycles, such as of placement, cancel out."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def placements(trip_ns: Sequence[float], least: int = 5) -> list[list[int]]:
    """Group cycles by the placement of the processors, near before far, if the round trips fall into two groups.

    The groups are divided at the widest relative gap that leaves ``least`` cycles on either side, if the far median is
    at least twice the near one. A trip is measured at the start of a cycle; a cycle belongs to no group if the
    placement changed before the next one.

    Returns
    -------
    list of list of int
        Numbers of cycles; a single group with all of them if there is no such gap.
    """
    everything = list(range(len(trip_ns)))
    ordered = sorted(trip_ns)
    gaps = [(ordered[i] / ordered[i - 1], ordered[i]) for i in range(least, len(ordered) - least + 1)]
    if not gaps:
        return [everything]
    _, border = max(gaps)
    is_far = [ns >= border for ns in trip_ns]
    steady = [i for i in everything if is_far[i] == is_far[min(i + 1, everything[-1])]]
    groups = [[i for i in steady if is_far[i] == far] for far in (False, True)]
    if any(len(one) < least for one in groups):
        return [everything]
    near_ns, far_ns = (statistics.median(trip_ns[i] for i in one) for one in groups)
    return groups if far_ns >= 2 * near_ns else [everything]
