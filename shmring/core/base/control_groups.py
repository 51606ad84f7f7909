"""The control groups (cgroups) of this process: what a container may use of its machine.

Functions over the roots of sysfs and procfs, given as arguments so that a test can hand in a tree of files. A missing
or malformed value is "no limit", never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from shmring.core.base.sysfs import number_in, read


def groups(controller: str, sysfs: str = "/sys", procfs: str = "/proc") -> Iterator[tuple[int, Path]]:
    """The directories of the control groups that apply to this process, each with its version, 1 or 2.

    From the process's own group up to the root, in both versions. Inside a container the own path may not exist below
    the mount; then what the container sees as the root counts.
    """
    mount = Path(sysfs) / "fs/cgroup"
    for line in read(Path(procfs) / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            yield from ((2, at) for root in (mount, mount / "unified") for at in _upwards(root, group))
        elif controller in controllers.split(","):
            roots = {mount / controller: 0, mount / controllers: 0}
            yield from ((1, at) for root in roots for at in _upwards(root, group))


def _upwards(root: Path, group: str) -> Iterator[Path]:
    """The directories of a control group and all above it, down to where the tree is mounted."""
    parts = [part for part in group.split("/") if part not in ("", ".", "..")]
    return (root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def memory_room(sysfs: str = "/sys", procfs: str = "/proc") -> int | None:
    """Bytes of memory that this process may still get before its tightest control group is full, and the kernel ends a
    process of the group; None: there is no limit.

    Pages of files count as free, since the kernel drops them; pages of shared memory do not, but for what can be
    swapped.
    """
    rooms = [_room(version, at, procfs) for version, at in groups("memory", sysfs, procfs)]
    return min((room for room in rooms if room is not None), default=None)


# The files of a group that has a limit: that and the memory in use, likewise of swap (in version 1 together with
# memory), and the words of memory.stat for pages that the kernel drops at need.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
    2: ("memory.max", "memory.current", "memory.swap.max", "memory.swap.current"),
}
_NO_LIMIT = 1 << 60  # in version 1 all that fits
_DROPPED = {1: ("total_inactive_file", "total_active_file"), 2: ("inactive_file", "active_file")}


def _room(version: int, at: Path, procfs: str) -> int | None:
    limit, used, swap_limit, swapped = (number_in(read(at / name)) for name in _FILES[version])
    if used < 0 or not 0 <= limit < _NO_LIMIT:
        return None
    stat = _table(read(at / "memory.stat"))
    room = limit - used + sum(stat.get(word, 0) for word in _DROPPED[version])
    swap = _table(read(Path(procfs) / "meminfo")).get("SwapFree:", 0) << 10
    if swap_limit >= 0 and swapped >= 0:
        swap = min(swap, swap_limit - swapped - (limit - used if version == 1 else 0))
    return max(0, room + max(0, swap))


def _table(text: str) -> dict[str, int]:
    """The numbers of a file with a word and a number in each line."""
    return {word: int(number) for word, number in re.findall(r"^(\S+)\s+([0-9]+)\b", text, re.MULTILINE)}
