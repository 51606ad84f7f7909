"""What the machine looks like to this process: processors, caches, NUMA nodes, quotas, shared memory.

Pure functions over the roots of sysfs and procfs, given as arguments so that a test (or a question about another
machine) can hand in a tree of files. Containers, virtual machines and other architectures leave out what they like; a
missing or odd file means "not known" and is never an error.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Cache",
    "Node",
    "Topology",
    "allowed_processors",
    "discover",
    "last_level_nbytes",
    "processor_quota",
    "second_level_nbytes",
    "shmem_huge_pages",
    "usable_processors",
]


@dataclass(frozen=True)
class Cache:
    """One cache and the processors, allowed ones only, that share it."""

    level: int
    nbytes: int
    line_nbytes: int
    processors: tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """One NUMA node: its allowed processors (none: memory only), its memory, its distance to each node in order."""

    number: int
    processors: tuple[int, ...]
    memory_nbytes: int
    free_nbytes: int
    distances: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The machine as this process may use it. What is not known is empty or 0 (-1 for free shared memory).

    Attributes
    ----------
    model, architecture : str
        Of the processors.
    processors : tuple of int
        Those in the affinity mask.
    usable : float
        How many of them can run at a time: less than their number under a control-group quota.
    packages : tuple of tuple of int
        The allowed processors of each package (socket).
    nodes : tuple of Node
        NUMA nodes; one for the whole machine where the kernel knows of none.
    caches : tuple of Cache
        Data and unified caches of the allowed processors, level 1 first.
    last_level_groups : tuple of tuple of int
        The allowed processors by last-level cache: within a group ranks are near, between groups far. What the machine
        says; a hypervisor may say otherwise than it does.
    shmem_huge_pages : str
        The setting for huge pages in shared memory: ``never``, ``advise``, ``always``, ...
    shm_nbytes, shm_free_nbytes : int
        Size of ``/dev/shm`` (0: no limit of its own) and what is free of it.
    """

    model: str
    architecture: str
    processors: tuple[int, ...]
    usable: float
    packages: tuple[tuple[int, ...], ...]
    nodes: tuple[Node, ...]
    caches: tuple[Cache, ...]
    last_level_groups: tuple[tuple[int, ...], ...]
    shmem_huge_pages: str
    shm_nbytes: int
    shm_free_nbytes: int

    def describe(self) -> str:
        """A drawing in text, some lines long."""
        count = len(self.processors)
        lines = [
            f"{self.model or 'unknown processor'} ({self.architecture}), "
            f"{count} processor{'s' * (count != 1)} allowed, {self.usable:g} usable at a time"
        ]
        lines += [f"package {number}: {_spans(group)}" for number, group in enumerate(self.packages)]
        for node in self.nodes:
            lines.append(
                f"node {node.number}: {_spans(node.processors) or 'no processors'}; "
                f"{_size(node.memory_nbytes)} memory, {_size(node.free_nbytes)} free"
            )
            lines += [
                f"  {self._last_level(group)}" for group in self.last_level_groups if set(group) & set(node.processors)
            ]
        if len(self.nodes) > 1:
            lines.append("distances  " + " ".join(f"{node.number:4}" for node in self.nodes))
            lines += [f"      {n.number:4} " + " ".join(f"{d:4}" for d in n.distances) for n in self.nodes]
        free = "an unknown part" if self.shm_free_nbytes < 0 else _size(self.shm_free_nbytes)
        shm = f"{_size(self.shm_nbytes)}, {free} free" if self.shm_nbytes else "no limit of its own"
        lines.append(f"/dev/shm: {shm}; huge pages: {self.shmem_huge_pages or 'unknown'}")
        return "\n".join(lines)

    def _last_level(self, group: tuple[int, ...]) -> str:
        for cache in reversed(self.caches):
            if cache.processors == group:
                return f"near each other: {_spans(group)}, on {_size(cache.nbytes)} of level-{cache.level} cache"
        return f"near each other, as far as is known: {_spans(group)}"


def discover(sysfs: str = "/sys", procfs: str = "/proc", shm: str = "/dev/shm") -> Topology:
    """Read the machine.

    Parameters
    ----------
    sysfs, procfs, shm : str
        Where these file systems are mounted, or trees that look like them.

    Returns
    -------
    Topology
        What could be read; nothing is raised for what could not.
    """
    processors = allowed_processors(procfs)
    caches = _caches(Path(sysfs), processors)
    packages = _groups(processors, lambda number: _package(Path(sysfs), number))
    shm_nbytes, shm_free_nbytes = _shm_space(shm)
    return Topology(
        model=_model(Path(procfs)),
        architecture=platform.machine(),
        processors=processors,
        usable=usable_processors(sysfs, procfs),
        packages=packages,
        nodes=_nodes(Path(sysfs), Path(procfs), processors),
        caches=caches,
        last_level_groups=_last_level_groups(processors, caches) or packages,
        shmem_huge_pages=shmem_huge_pages(sysfs),
        shm_nbytes=shm_nbytes,
        shm_free_nbytes=shm_free_nbytes,
    )


def allowed_processors(procfs: str = "/proc") -> tuple[int, ...]:
    """The processors in the affinity mask of the calling thread, which a cpuset has been taken out of already."""
    for status in ("thread-self/status", "self/status"):
        match = re.search(r"^Cpus_allowed_list:\s*(\S+)", _read(Path(procfs) / status), re.MULTILINE)
        if match and (processors := parse_list(match[1])):
            return processors
    return tuple(sorted(os.sched_getaffinity(0)))


def usable_processors(sysfs: str = "/sys", procfs: str = "/proc") -> float:
    """How many processors this process and its siblings can keep busy at a time: affinity mask and quota together."""
    allowed = float(len(allowed_processors(procfs)))
    quota = processor_quota(sysfs, procfs)
    return allowed if quota is None else min(allowed, quota)


def last_level_nbytes(sysfs: str = "/sys", procfs: str = "/proc") -> int:
    """Bytes of the last-level cache of the first allowed processor; 0 if not known."""
    caches = _caches(Path(sysfs), allowed_processors(procfs)[:1])
    return caches[-1].nbytes if caches else 0


def second_level_nbytes(sysfs: str = "/sys") -> int:
    """Bytes of the second-level cache of processor 0, 0 if not known.

    Of processor 0 whichever are allowed: where there are two kinds of cores all processes must get one answer.
    """
    return next((cache.nbytes for cache in _caches(Path(sysfs), (0,)) if cache.level == 2), 0)


def shmem_huge_pages(sysfs: str = "/sys") -> str:
    """The system's setting for huge pages in shared memory; empty if not known."""
    return _chosen(_read(Path(sysfs) / "kernel/mm/transparent_hugepage/shmem_enabled"))


def processor_quota(sysfs: str = "/sys", procfs: str = "/proc") -> float | None:
    """The tightest control-group quota above this process, in processors; None if there is none.

    Both versions of control groups are asked, from the process's own group up to the root. Inside a container the own
    path may not exist below the mount; then what the container sees as the root counts.
    """
    mount = Path(sysfs) / "fs/cgroup"
    quotas = []
    for line in _read(Path(procfs) / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":  # version 2
            quotas += [_quota_v2(at) for root in (mount, mount / "unified") for at in _upwards(root, group)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(at) for root in (mount / "cpu", mount / controllers) for at in _upwards(root, group)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _upwards(root: Path, group: str) -> Iterable[Path]:
    """The directories of a control group and all above it, down to where the tree is mounted."""
    parts = [part for part in group.split("/") if part not in ("", ".", "..")]
    return (root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _quota_v2(directory: Path) -> float | None:
    words = _read(directory / "cpu.max").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(directory: Path) -> float | None:
    return _ratio(_read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """Quota by period; None where there is none (``max``, -1) or it makes no sense."""
    numerator, denominator = _number(quota), _number(period)
    return numerator / denominator if numerator > 0 and denominator > 0 else None


def _nodes(sysfs: Path, procfs: Path, processors: tuple[int, ...]) -> tuple[Node, ...]:
    root = sysfs / "devices/system/node"
    numbers = sorted(int(entry[4:]) for entry in _entries(root) if re.fullmatch(r"node[0-9]+", entry))
    nodes = []
    for number in numbers:
        directory = root / f"node{number}"
        memory = _read(directory / "meminfo")
        nodes.append(
            Node(
                number=number,
                processors=_among(parse_list(_read(directory / "cpulist")), processors),
                memory_nbytes=_meminfo(memory, "MemTotal"),
                free_nbytes=_meminfo(memory, "MemFree"),
                distances=tuple(_number(word) for word in _read(directory / "distance").split()),
            )
        )
    if nodes:
        return tuple(nodes)
    memory = _read(procfs / "meminfo")
    return (Node(0, processors, _meminfo(memory, "MemTotal"), _meminfo(memory, "MemFree"), (10,)),)


def _meminfo(text: str, field: str) -> int:
    match = re.search(rf"\b{field}:\s*([0-9]+) kB", text)
    return int(match[1]) * 1024 if match else 0


@functools.cache  # some twenty files a processor, and they never change
def _caches(sysfs: Path, processors: tuple[int, ...]) -> tuple[Cache, ...]:
    """Each cache once, whichever of its processors tells of it."""
    found = set()
    for number in processors:
        root = sysfs / f"devices/system/cpu/cpu{number}/cache"
        for entry in _entries(root):
            level = _number(_read(root / entry / "level"))
            shared = _among(parse_list(_read(root / entry / "shared_cpu_list")), processors) or (number,)
            if level > 0 and _read(root / entry / "type") != "Instruction":
                nbytes = _parse_size(_read(root / entry / "size"))
                found.add(Cache(level, nbytes, max(0, _number(_read(root / entry / "coherency_line_size"))), shared))
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.processors)))


def _last_level_groups(processors: tuple[int, ...], caches: tuple[Cache, ...]) -> tuple[tuple[int, ...], ...]:
    """By the highest cache of each processor; one whose caches are not known is alone. Nothing if none is known."""
    last = {number: cache for cache in caches for number in cache.processors}  # sorted by level: the last one stays
    return _groups(processors, lambda number: last.get(number, number)) if last else ()


def _groups(processors: tuple[int, ...], key: Callable[[int], object]) -> tuple[tuple[int, ...], ...]:
    """The processors by what ``key`` says of them, in order of first appearance."""
    groups: dict[object, list[int]] = {}
    for number in processors:
        groups.setdefault(key(number), []).append(number)
    return tuple(tuple(group) for group in groups.values())


def _package(sysfs: Path, number: int) -> int:
    # -1 where the firmware does not say, which makes one package of all such processors.
    return _number(_read(sysfs / f"devices/system/cpu/cpu{number}/topology/physical_package_id"))


# Makers of arm64 cores, by the number in their MIDR register.
_ARM_MAKERS = {0x41: "Arm", 0x42: "Broadcom", 0x43: "Cavium", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x50: "Ampere"}
_ARM_MAKERS |= {0x51: "Qualcomm", 0x61: "Apple", 0xC0: "Ampere"}


def _model(procfs: Path) -> str:
    """The name of the processor; arm64 has numbers only."""
    fields: dict[str, str] = {}
    for line in _read(procfs / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    for name in ("model name", "cpu model", "uarch", "cpu"):
        if fields.get(name):
            return fields[name]
    if maker := fields.get("cpu implementer"):
        return f"{_ARM_MAKERS.get(_number(maker), f'implementer {maker}')} part {fields.get('cpu part', 'unknown')}"
    return ""


def _shm_space(shm: str) -> tuple[int, int]:
    try:
        status = os.statvfs(shm)
    except OSError:
        return 0, -1
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize if status.f_blocks else -1


# -- reading ----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    """The stripped text of a file; empty if it is missing, unreadable, or answers with an error as sysfs files may."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def _entries(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _number(text: str) -> int:
    """An integer, decimal or 0x; -1 if it is none."""
    try:
        return int(text, 0)
    except ValueError:
        return -1


def _parse_size(text: str) -> int:
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


def _among(numbers: tuple[int, ...], allowed: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(number for number in numbers if number in allowed)


def _chosen(text: str) -> str:
    """The bracketed word of a setting: ``always [never]`` is ``never``."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else ""


def _spans(numbers: Iterable[int]) -> str:
    """The kernel's list format of sorted numbers."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def _size(nbytes: int) -> str:
    """Bytes for people."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
