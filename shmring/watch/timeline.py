"""Reading timelines: the files that ranks have recorded, checked, with their calls in order of time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from shmring.collectives.engine.kinds import explain
from shmring.collectives.engine.recording import COUNT_OFFSET, FORMAT, HEADER_NBYTES, SUFFIX

# `record_t` of collectives/engine/recording.pxd.
RECORD = np.dtype(
    [
        ("start_ns", "u8"),
        ("end_ns", "u8"),
        ("wait_ns", "u8"),
        ("waited_ns", "u8"),
        ("signature", "u8"),
        ("nbytes", "u8"),
        ("number", "u8"),
        ("peer", "i4"),
        ("failed", "u4"),
        ("algorithm", "S24"),
        ("line", "S104"),
    ]
)


class Timeline(NamedTuple):
    """The record of one rank on one communicator.

    Attributes
    ----------
    path : str
    facts : dict
        ``name``, ``group``, ``rank``, ``size``, ``pid``, ``command``, ``boot_id``, ``epoch_ns``.
    calls : numpy.ndarray
        Dtype `RECORD`: collectives and messages, in the order of their beginnings.
    lost : int
        The number of older calls that were overwritten.
    """

    path: str
    facts: dict[str, Any]
    calls: np.ndarray
    lost: int

    def collectives(self) -> np.ndarray:
        """Its collectives that have ended."""
        return self.calls[(self.calls["peer"] < 0) & (self.calls["end_ns"] > 0)]


_TEXTS = ("name", "group", "boot_id", "command")
_NUMBERS = ("rank", "size", "pid", "calls", "epoch_ns")


def read(directory: str) -> list[Timeline]:
    """All timelines of a directory, by communicator and rank.

    Raises ``ValueError`` if there is none, for a file that is none, or if they are from several boots, whose clocks
    cannot be compared.
    """
    if not os.path.isdir(directory):
        raise ValueError(f"{directory!r} is no directory")
    names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    if not names:
        raise ValueError(f"{directory!r} has no timeline: no file with a name that ends in {SUFFIX}")
    found = [_read_one(os.path.join(directory, name)) for name in names]
    if len({one.facts["boot_id"] for one in found}) > 1:
        raise ValueError(f"{directory!r} has timelines of several boots or machines; their clocks cannot be compared")
    return sorted(found, key=lambda one: (one.facts["epoch_ns"] // 10**18, one.facts["group"], one.facts["rank"]))


def _read_one(path: str) -> Timeline:
    with open(path, "rb") as file:
        data = file.read()
    try:
        facts = json.loads(data[:COUNT_OFFSET].rstrip(b"\0"))
        sound = (
            facts["format"] == FORMAT
            and all(isinstance(facts[key], str) for key in _TEXTS)
            and all(type(facts[key]) is int for key in _NUMBERS)
            and 0 <= facts["rank"] < facts["size"]
            and 0 < facts["calls"] <= (len(data) - HEADER_NBYTES) // RECORD.itemsize
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise ValueError(f"{path!r} is no timeline of this version of shmring")
    capacity, count = facts["calls"], int.from_bytes(data[COUNT_OFFSET:HEADER_NBYTES], "little")
    calls = np.frombuffer(data, RECORD, capacity, HEADER_NBYTES)
    # In a full ring the oldest record is the one that would be overwritten next.
    calls = np.roll(calls, -(count % capacity)) if count > capacity else calls[:count]
    return Timeline(path, facts, calls, max(0, count - capacity))


def name_of(signature: int) -> str:
    """The call of a record."""
    return explain(int(signature))


def together(timelines: Iterable[Timeline]) -> dict[str, list[Timeline]]:
    """Timelines by communicator."""
    groups: dict[str, list[Timeline]] = {}
    for one in timelines:
        groups.setdefault(one.facts["group"], []).append(one)
    return groups
