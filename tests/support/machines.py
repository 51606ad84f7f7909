"""Machines: the topology that the kernel of a real machine reports, in a compact form, and as trees of files to read.

Each has the contents of sysfs: the lists in the kernel's format, but for the short form ``0-79:1/4`` (every fourth).
Sources: trees recorded for hwloc's tests (both Xeons, Kunpeng, laptop, GB10), reports of users (EPYC, Grace Hopper),
and a virtual machine of ours. A field that a source did not have is empty, and so is its file absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from shmring.core.base.sysfs import parse_list
from shmring.core.base.text import spans


@dataclass(frozen=True)
class Machine:
    """One machine. Caches are (level, size, sharers); every processor is named in one sharer list of each level."""

    cpuinfo: str
    packages: dict[int, str]
    nodes: dict[int, tuple[str, str, int]]  # number: processors, distances, kB
    caches: tuple[tuple[int, str, tuple[str, ...]], ...]
    cores: tuple[str, ...] = ()  # those of several processors
    allowed: str = ""  # of processors and of nodes with memory; empty: all
    allowed_mems: str = ""
    cpu_max: str = ""

    def write(self, root: Path) -> dict[str, str]:
        """Make the files below ``root``; the arguments that `shmring.core.placement.topology.discover` takes."""
        files = {f"sys/devices/system/{path}": text for path, text in self._sysfs().items()}
        everything = spans(sorted(n for group in self.packages.values() for n in parse_list(group)))
        mems = self.allowed_mems or spans(sorted(self.nodes))
        status = f"Cpus_allowed_list:\t{self.allowed or everything}\nMems_allowed_list:\t{mems}"
        files |= {"proc/self/status": status, "proc/cpuinfo": self.cpuinfo}
        if self.cpu_max:
            files |= {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": self.cpu_max}
        for path, text in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text + "\n")
        return {"sysfs": f"{root}/sys", "procfs": f"{root}/proc", "shm": str(root)}

    def _sysfs(self) -> dict[str, str]:
        files = {"node/has_memory": spans(n for n, (_, _, kib) in sorted(self.nodes.items()) if kib)}
        for number, (processors, distances, kib) in self.nodes.items():
            files[f"node/node{number}/cpulist"] = spans(parse_list(processors))
            if distances:
                files[f"node/node{number}/distance"] = distances
            files[f"node/node{number}/meminfo"] = f"Node {number} MemTotal:       {kib} kB"
        core_of = {n: core for core in self.cores for n in parse_list(core)}
        for package, processors in self.packages.items():
            for n in parse_list(processors):
                files[f"cpu/cpu{n}/topology/physical_package_id"] = str(package)
                files[f"cpu/cpu{n}/topology/thread_siblings_list"] = core_of.get(n, str(n))
        for index, (level, size, sharers) in enumerate(self.caches):
            for shared in map(parse_list, sharers):
                for n in shared:
                    at = f"cpu/cpu{n}/cache/index{index}"
                    files[f"{at}/level"], files[f"{at}/type"] = str(level), "Data" if level == 1 else "Unified"
                    files[f"{at}/size"], files[f"{at}/shared_cpu_list"] = size, spans(shared)
                    files[f"{at}/coherency_line_size"] = "64"
        return files


def _pairs(count: int, apart: int) -> tuple[str, ...]:
    return tuple(f"{n},{n + apart}" for n in range(count))


def _alone(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _runs(count: int, each: int) -> tuple[str, ...]:
    return tuple(f"{n}-{n + each - 1}" for n in range(0, count, each))


XEON = Machine(
    "model name\t: Intel(R) Xeon(R) Silver 4108 CPU @ 1.80GHz",
    packages={0: "0-7,16-23", 1: "8-15,24-31"},
    nodes={0: ("0-7,16-23", "10 21", 47925628), 1: ("8-15,24-31", "21 10", 49519964)},
    caches=(
        (1, "32K", _pairs(16, 16)),
        (2, "1024K", _pairs(16, 16)),
        (3, "11264K", ("0-7,16-23", "8-15,24-31")),
    ),
    cores=_pairs(16, 16),
)

MACHINES = {
    "xeon": XEON,
    # Sub-NUMA clusters: a last-level cache, as the processor reports it, holds two nodes.
    "xeon-clusters": Machine(
        "model name\t: Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz",
        packages={0: "0-79:1/2", 1: "1-79:1/2"},
        nodes={
            0: ("0-79:1/4", "10 21 11 21", 388492316),
            1: ("1-79:1/4", "21 10 21 11", 390163848),
            2: ("2-79:1/4", "11 21 10 21", 390163840),
            3: ("3-79:1/4", "21 11 21 10", 390162812),
        },
        caches=(
            (1, "32K", _pairs(40, 40)),
            (2, "1024K", _pairs(40, 40)),
            (3, "28160K", ("0-79:1/2", "1-79:1/2")),
        ),
        cores=_pairs(40, 40),
    ),
    # Two EPYC 9375F, hardware threads off: eight chiplets with a cache of their own in each package.
    "epyc": Machine(
        "model name\t: AMD EPYC 9375F 32-Core Processor",
        packages={0: "0-31", 1: "32-63"},
        nodes={0: ("0-31", "10 32", 773271 << 10), 1: ("32-63", "32 10", 774028 << 10)},
        caches=((1, "48K", _alone(64)), (2, "1024K", _alone(64)), (3, "32768K", _runs(64, 4))),
    ),
    # Grace Hopper: the memory of the accelerator, and room for seven parts of it, are nodes without processors.
    "grace": Machine(
        "CPU implementer\t: 0x41\nCPU part\t: 0xd4f",
        packages={0: "0-71"},
        nodes={0: ("0-71", "", 120 << 20)} | dict.fromkeys(range(1, 9), ("", "", 0)),
        caches=((1, "64K", _alone(72)), (2, "1024K", _alone(72)), (3, "116736K", ("0-71",))),
    ),
    # Kunpeng 920: package ids are what the firmware likes, and no two distances alike.
    "kunpeng": Machine(
        "CPU implementer\t: 0x48\nCPU part\t: 0xd01",
        packages={36: "0-63", 8442: "64-127"},
        nodes={
            0: ("0-31", "10 16 32 33", 131732940),
            1: ("32-63", "16 10 25 32", 132117940),
            2: ("64-95", "32 25 10 16", 132117936),
            3: ("96-127", "33 32 16 10", 131062408),
        },
        caches=((1, "64K", _alone(128)), (2, "512K", _alone(128)), (3, "32768K", _runs(128, 32))),
    ),
    # Two kinds of cores: six with two hardware threads each, eight small ones that share second-level caches.
    "laptop": Machine(
        "model name\t: 13th Gen Intel(R) Core(TM) i7-1370P",
        packages={0: "0-19"},
        nodes={0: ("0-19", "10", 32489480)},
        caches=(
            (1, "48K", (*_runs(12, 2), *map(str, range(12, 20)))),
            (2, "1280K", _runs(12, 2)),
            (2, "2048K", ("12-15", "16-19")),
            (3, "24576K", ("0-19",)),
        ),
        cores=_runs(12, 2),
    ),
    # DGX Spark: one node, but two halves with a last-level cache of each.
    "gb10": Machine(
        "CPU implementer\t: 0x41\nCPU part\t: 0xd87",
        packages={36: "0-19"},
        nodes={0: ("0-19", "10", 125508468)},
        caches=((1, "64K", _alone(20)), (3, "8192K", ("0-9",)), (3, "16384K", ("10-19",))),
    ),
    # A container on the first machine: parts of two packages, memory of one node only, a quota.
    "container": replace(XEON, allowed="2-3,8,18", allowed_mems="0", cpu_max="150000 100000"),
    # Two virtual processors that share a cache according to sysfs; in fact that changes, as their host moves them.
    "lying-vm": Machine(
        "model name\t: AMD EPYC",
        packages={0: "0-1"},
        nodes={0: ("0-1", "10", 17394228)},
        caches=((1, "32K", _alone(2)), (2, "1024K", _alone(2)), (3, "32768K", ("0-1",))),
    ),
}
