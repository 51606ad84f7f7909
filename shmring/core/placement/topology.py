"""Discovery of the hardware topology that this process may use: processors, caches, NUMA nodes, quotas, shared memory.

Pure functions over the roots of sysfs and procfs, given as arguments so that a test, or a query about another
machine, can pass a tree of files. Containers, virtual machines and other architectures omit any of these files; a
missing or malformed file means "not known" and is never an error.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shmring.core.base.sysfs import among, chosen_in, entries, number_in, parse_list, read, size_in
from shmring.core.base.text import size_text, spans
from shmring.core.placement.cpus import allowed_processors, usable_processors

__all__ = [
    "Cache",
    "Node",
    "Topology",
    "discover",
    "last_level_nbytes",
    "second_level_nbytes",
    "shmem_huge_pages",
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
        The name and the architecture of the processors.
    processors : tuple of int
        The processors in the affinity mask.
    usable : float
        The number of processors that can run at a time: less than all under a control-group quota.
    cores : tuple of tuple of int
        The allowed processors of each core: its hardware threads.
    packages : tuple of tuple of int
        The allowed processors of each package (socket).
    nodes : tuple of Node
        NUMA nodes; one for the whole machine where the kernel knows of none.
    caches : tuple of Cache
        Data and unified caches of the allowed processors, level 1 first.
    last_level_groups : tuple of tuple of int
        The allowed processors by last-level cache: ranks of a group share a cache, ranks of different groups do not. As
        reported by the machine; hypervisors may report it wrongly.
    shmem_huge_pages : str
        The setting for huge pages in shared memory: ``never``, ``advise``, ``always``, ...
    shm_nbytes, shm_free_nbytes : int
        Size of ``/dev/shm`` (0: no limit of its own) and what is free of it.
    """

    model: str
    architecture: str
    processors: tuple[int, ...]
    usable: float
    cores: tuple[tuple[int, ...], ...]
    packages: tuple[tuple[int, ...], ...]
    nodes: tuple[Node, ...]
    caches: tuple[Cache, ...]
    last_level_groups: tuple[tuple[int, ...], ...]
    shmem_huge_pages: str
    shm_nbytes: int
    shm_free_nbytes: int

    def describe(self) -> str:
        """The topology as text, several lines."""
        return _draw(self)


def discover(sysfs: str = "/sys", procfs: str = "/proc", shm: str = "/dev/shm") -> Topology:
    """Read the machine.

    Parameters
    ----------
    sysfs, procfs, shm : str
        Where these file systems are mounted, or copies of their trees.

    Returns
    -------
    Topology
        All that could be read; nothing is raised for the rest.
    """
    processors = allowed_processors(procfs)
    caches = _caches(Path(sysfs), processors)
    packages = _groups(processors, lambda number: package_of(Path(sysfs), number))
    shm_nbytes, shm_free_nbytes = _shm_space(shm)
    return Topology(
        model=_model(Path(procfs)),
        architecture=platform.machine(),
        processors=processors,
        usable=usable_processors(sysfs, procfs),
        cores=_groups(processors, lambda number: _core(Path(sysfs), number)),
        packages=packages,
        nodes=_nodes(Path(sysfs), Path(procfs), processors),
        caches=caches,
        last_level_groups=_last_level_groups(processors, caches) or packages,
        shmem_huge_pages=shmem_huge_pages(sysfs),
        shm_nbytes=shm_nbytes,
        shm_free_nbytes=shm_free_nbytes,
    )


def last_level_nbytes(sysfs: str = "/sys", procfs: str = "/proc") -> int:
    """Bytes of the last-level cache of the first allowed processor; 0 if not known."""
    caches = _caches(Path(sysfs), allowed_processors(procfs)[:1])
    return caches[-1].nbytes if caches else 0


def second_level_nbytes(sysfs: str = "/sys") -> int:
    """Bytes of the second-level cache of processor 0, 0 if not known.

    Of processor 0, whatever the affinity mask: with two kinds of cores all processes must get the same value.
    """
    return next((cache.nbytes for cache in _caches(Path(sysfs), (0,)) if cache.level == 2), 0)


def shmem_huge_pages(sysfs: str = "/sys") -> str:
    """The system's setting for huge pages in shared memory; empty if not known."""
    return chosen_in(read(Path(sysfs) / "kernel/mm/transparent_hugepage/shmem_enabled"))


def nodes_of(sysfs: Path) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Each NUMA node: its number, all its processors, its distance to each node in order; none where not known."""
    root = sysfs / "devices/system/node"
    found = []
    for number in sorted(int(entry[4:]) for entry in entries(root) if re.fullmatch(r"node[0-9]+", entry)):
        distances = tuple(number_in(word) for word in read(root / f"node{number}/distance").split())
        found.append((number, parse_list(read(root / f"node{number}/cpulist")), distances))
    return found


def _nodes(sysfs: Path, procfs: Path, processors: tuple[int, ...]) -> tuple[Node, ...]:
    nodes = []
    for number, members, distances in nodes_of(sysfs):
        memory = read(sysfs / f"devices/system/node/node{number}/meminfo")
        total, free = _meminfo(memory, "MemTotal"), _meminfo(memory, "MemFree")
        nodes.append(Node(number, among(members, processors), total, free, distances))
    if nodes:
        return tuple(nodes)
    memory = read(procfs / "meminfo")
    return (Node(0, processors, _meminfo(memory, "MemTotal"), _meminfo(memory, "MemFree"), (10,)),)


def _meminfo(text: str, field: str) -> int:
    match = re.search(rf"\b{field}:\s*([0-9]+) kB", text)
    return int(match[1]) * 1024 if match else 0


def caches_of(sysfs: Path, processor: int) -> list[Cache]:
    """The data and unified caches of a processor, each with all processors that share it."""
    root = sysfs / f"devices/system/cpu/cpu{processor}/cache"
    found = []
    for entry in entries(root):
        level = number_in(read(root / entry / "level"))
        if level > 0 and read(root / entry / "type") != "Instruction":
            nbytes = size_in(read(root / entry / "size"))
            line_nbytes = max(0, number_in(read(root / entry / "coherency_line_size")))
            found.append(Cache(level, nbytes, line_nbytes, parse_list(read(root / entry / "shared_cpu_list"))))
    return found


@functools.cache  # about twenty files for each processor, which never change
def _caches(sysfs: Path, processors: tuple[int, ...]) -> tuple[Cache, ...]:
    """All caches, each once, though each of its processors lists it."""
    found = {
        replace(cache, processors=among(cache.processors, processors) or (number,))
        for number in processors
        for cache in caches_of(sysfs, number)
    }
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.processors)))


def _last_level_groups(processors: tuple[int, ...], caches: tuple[Cache, ...]) -> tuple[tuple[int, ...], ...]:
    """Groups by the highest cache of each processor; one without known caches is alone. Empty if none is known."""
    last = {number: cache for cache in caches for number in cache.processors}  # sorted by level: the last one stays
    return _groups(processors, lambda number: last.get(number, number)) if last else ()


def _groups(processors: tuple[int, ...], key: Callable[[int], object]) -> tuple[tuple[int, ...], ...]:
    """The processors grouped by ``key``, in order of first appearance."""
    groups: dict[object, list[int]] = {}
    for number in processors:
        groups.setdefault(key(number), []).append(number)
    return tuple(tuple(group) for group in groups.values())


def _core(sysfs: Path, number: int) -> int:
    # The name of the file until Linux 5.0, which stays beside `core_cpus_list`.
    siblings = parse_list(read(sysfs / f"devices/system/cpu/cpu{number}/topology/thread_siblings_list"))
    return min(siblings, default=number)


def package_of(sysfs: Path, number: int) -> int:
    """The number of a processor's package; -1 where the firmware does not report it: one package of all such."""
    return number_in(read(sysfs / f"devices/system/cpu/cpu{number}/topology/physical_package_id"))


# Vendors of arm64 cores, by the number in their MIDR register.
_ARM_MAKERS = {0x41: "Arm", 0x42: "Broadcom", 0x43: "Cavium", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x50: "Ampere"}
_ARM_MAKERS |= {0x51: "Qualcomm", 0x61: "Apple", 0xC0: "Ampere"}


def _model(procfs: Path) -> str:
    """The name of the processor; arm64 has numbers only."""
    fields: dict[str, str] = {}
    for line in read(procfs / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    for name in ("model name", "cpu model", "uarch", "cpu"):
        if fields.get(name):
            return fields[name]
    if maker := fields.get("cpu implementer"):
        return f"{_ARM_MAKERS.get(number_in(maker), f'implementer {maker}')} part {fields.get('cpu part', 'unknown')}"
    return ""


def _shm_space(shm: str) -> tuple[int, int]:
    try:
        status = os.statvfs(shm)
    except OSError:
        return 0, -1
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize if status.f_blocks else -1


# ---- as text: a tree of packages, nodes and caches, and the table of node distances ----

Group = tuple[int, ...]
# One partition of the processors: the groups, and the function that labels one.
Way = tuple[Sequence[Group], Callable[[Group], str]]


def _draw(topology: Topology) -> str:
    """The tree: packages, in them nodes and last-level caches, whichever contains the other; then the distances."""
    count = len(topology.processors)
    cores = f" on {len(topology.cores)} cores" if len(topology.cores) < count else ""
    lines = [
        f"{topology.model or 'unknown processor'} ({topology.architecture}), "
        f"{count} processor{'s' * (count != 1)}{cores} allowed, {topology.usable:g} usable at a time"
    ]
    of_group = {node.processors: node for node in topology.nodes}
    nodes = [node.processors for node in topology.nodes if node.processors]

    def node_text(group: Group) -> str:
        node = of_group[group]
        memory = f"{size_text(node.memory_nbytes)} memory, {size_text(node.free_nbytes)} free"
        return f"node {node.number}: {spans(group)}; {memory}"

    def cache_text(group: Group) -> str:
        for cache in reversed(topology.caches):
            if cache.processors == group:
                return f"{spans(group)} share {size_text(cache.nbytes)} of level-{cache.level} cache"
        return f"{spans(group)} near each other, as far as is known"

    ways: list[Way] = [(nodes, node_text), (topology.last_level_groups, cache_text)]
    ways.sort(key=lambda way: len(way[0]))  # stable: a node comes before its only cache
    for number, package in enumerate(topology.packages):
        lines.append(f"package {number}: {spans(package)}")
        lines += _branches(package, ways)
    for node in topology.nodes:
        if not node.processors:
            memory = f"{size_text(node.memory_nbytes)} memory, {size_text(node.free_nbytes)} free"
            lines.append(f"node {node.number}: no processors; {memory}")
    if len(topology.nodes) > 1:
        lines.append("distances  " + " ".join(f"{node.number:4}" for node in topology.nodes))
        lines += [f"      {n.number:4} " + " ".join(f"{d:4}" for d in n.distances) for n in topology.nodes]
    free = "an unknown part" if topology.shm_free_nbytes < 0 else size_text(topology.shm_free_nbytes)
    shm = f"{size_text(topology.shm_nbytes)}, {free} free" if topology.shm_nbytes else "no limit of its own"
    lines.append(f"/dev/shm: {shm}; huge pages: {topology.shmem_huge_pages or 'unknown'}")
    return "\n".join(lines)


def _branches(within: Group, ways: Sequence[Way]) -> list[str]:
    """The lines of the groups inside a group, as branches of the tree."""
    if not ways:
        return []
    groups, text = ways[0]
    inside = [group for group in groups if set(group) & set(within)]
    lines = []
    for i, group in enumerate(inside):
        corner, side = ("└─ ", "   ") if i == len(inside) - 1 else ("├─ ", "│  ")
        lines.append(corner + text(group))
        lines += [side + line for line in _branches(group, ways[1:])]
    return lines
