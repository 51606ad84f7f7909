"""Parsers of small files of sysfs and procfs; a missing or malformed value is "unknown", never an error."""

from __future__ import annotations

import os
import re
from pathlib import Path


def read(path: Path) -> str:
    """The stripped text of a file; empty if it is missing, or opening or reading fails, as it may in sysfs."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def stat_fields(process: int | str, procfs: str = "/proc") -> list[str]:
    """The fields of ``/proc/PID/stat`` behind the name, which may hold anything: the first is the state. Empty if
    there is no such process."""
    try:
        with open(f"{procfs}/{process}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def entries(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def number_in(text: str) -> int:
    """An integer, decimal or 0x; -1 if it is none."""
    try:
        return int(text, 0)
    except ValueError:
        return -1


def size_in(text: str) -> int:
    """``32768K`` in bytes; 0 if it is no size."""
    match = re.fullmatch(r"([0-9]+)([KMG]?)", text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def parse_list(text: str) -> tuple[int, ...]:
    """The kernel's list format, ``0-3,8,10-14:2``, as numbers in order; what is malformed is left out."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if match := re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7}))?(?::([0-9]+)/([0-9]+))?", part):
            first, last = int(match[1]), int(match[2] or match[1])
            used, group = int(match[3] or 1), int(match[4] or 1)
            numbers.update(n for n in range(first, last + 1) if not group or (n - first) % group < used)
    return tuple(sorted(numbers))


def among(numbers: tuple[int, ...], allowed: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(number for number in numbers if number in allowed)


def chosen_in(text: str) -> str:
    """The bracketed word of a setting: ``always [never]`` is ``never``."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else ""
