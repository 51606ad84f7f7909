"""Numbers as text for people: lists of numbers, sizes."""

from __future__ import annotations

from collections.abc import Iterable


def spans(numbers: Iterable[int], separator: str = ",") -> str:
    """The kernel's list format of sorted numbers: ``0-2,5``."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return separator.join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def size_text(nbytes: int) -> str:
    """Bytes for people."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
