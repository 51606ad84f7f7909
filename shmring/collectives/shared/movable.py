"""Which memory of this process can be replaced by shared memory: private, without a file behind it, writable.

The kernel describes each mapping in ``/proc/self/smaps``, with two letters for each of its properties.
"""

from __future__ import annotations

import mmap
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shmring.core.memory.syscalls import refusals

# Properties that stand against it.
_OBSTACLES = {
    "ht": "consists of pages of hugetlbfs",
    "io": "belongs to a device",
    "pf": "belongs to a device",
    "dc": "is not inherited by forked children (MADV_DONTFORK), as memory that a device accesses",
    "wf": "is erased in forked children (MADV_WIPEONFORK)",
    "um": "is watched by userfaultfd",
    "uw": "is watched by userfaultfd",
    "ui": "is watched by userfaultfd",
    "gd": "is a stack",
    "sl": "is sealed (mseal)",
}
# Properties to restore: ``madvise`` makes them.
_ADVICE = {
    "hg": mmap.MADV_HUGEPAGE,
    "nh": mmap.MADV_NOHUGEPAGE,
    "dd": mmap.MADV_DONTDUMP,
    "mg": mmap.MADV_MERGEABLE,
}
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ (\S+) (\d+) *(.*)")


class Extent(NamedTuple):
    """One mapping of this process."""

    start: int
    end: int
    permissions: str
    file: tuple[str, str]  # device and inode; the inode is "0" if there is no file
    name: str
    flags: tuple[str, ...]


class Properties(NamedTuple):
    """The properties that pages keep when they move: arguments of `shmring.collectives.shared.moved.MovedPages`."""

    is_locked: bool
    advice: tuple[int, ...]


def whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    """Bounds of the whole pages inside a range of memory."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    return start, max(start, (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE)


def examine(ranges: Sequence[tuple[int, int]]) -> list[Properties]:
    """The properties of each range (start, end) of whole pages.

    Raises
    ------
    ValueError
        One cannot be moved, with the reason.
    SegmentError
        The kernel does not describe the mappings.
    """
    with refusals("look at the mappings of this process"):
        extents = list(_extents("/proc/self/smaps", ranges))
    return [_properties(start, end, _inside(extents, start, end)) for start, end in ranges]


def mapped_files(ranges: Sequence[tuple[int, int]]) -> list[set[tuple[str, str]]]:
    """For each range (start, end) the files that are mapped there; what is no file's has the inode "0"."""
    extents = list(_extents("/proc/self/maps", ranges))
    found = []
    for start, end in ranges:
        inside = _inside(extents, start, end)
        files = {extent.file for extent in inside}
        found.append(files if _cover(inside, start, end) else files | {("", "")})
    return found


def _extents(path: str, ranges: Sequence[tuple[int, int]]) -> Iterator[Extent]:
    """The mappings up to the end of the last range; read only if there is one."""
    if not ranges:
        return
    last = max(end for _, end in ranges)
    head, flags = None, ""
    with open(path, errors="replace") as file:
        for line in file:
            match = _HEAD.match(line)
            if match is None:
                if line.startswith("VmFlags:"):
                    flags = line.partition(":")[2]
                continue
            if head is not None:
                yield _extent(head, flags)
            head, flags = match, ""
            if int(match[1], 16) >= last:
                return
    if head is not None:
        yield _extent(head, flags)


def _extent(head: re.Match[str], flags: str) -> Extent:
    return Extent(
        int(head[1], 16), int(head[2], 16), head[3], (head[4], head[5]), head[6].strip(), tuple(flags.split())
    )


def _inside(extents: list[Extent], start: int, end: int) -> list[Extent]:
    """Of extents in the order of their addresses, those that meet a range."""
    first = bisect_right(extents, start, key=lambda extent: extent.end)
    return extents[first : bisect_left(extents, end, lo=first, key=lambda extent: extent.start)]


def _cover(extents: list[Extent], start: int, end: int) -> bool:
    return sum(min(end, extent.end) - max(start, extent.start) for extent in extents) == end - start


def _properties(start: int, end: int, extents: list[Extent]) -> Properties:
    for extent in extents:
        reason = _obstacle(extent)
        if reason:
            raise ValueError(f"the memory at {max(start, extent.start):#x} {reason}")
    if not _cover(extents, start, end):
        raise ValueError(f"the memory from {start:#x} to {end:#x} is not mapped")
    flags = {flag for extent in extents for flag in extent.flags}
    return Properties("lo" in flags, tuple(advice for flag, advice in _ADVICE.items() if flag in flags))


def _obstacle(extent: Extent) -> str:
    """Why this memory cannot be moved; empty if it can."""
    for flag in extent.flags:
        if flag in _OBSTACLES:
            return _OBSTACLES[flag]
    if extent.permissions[3] == "s":
        return "is shared already"
    if extent.file[1] != "0":
        return f"is mapped from a file, {extent.name}"
    if extent.permissions != "rw-p":
        return f"has the permissions {extent.permissions[:3]}, not rw-"
    if extent.name.startswith("[") and not extent.name.startswith(("[heap]", "[anon:")):
        return f"is {extent.name}"
    return ""
