"""Where running jobs lie: the processor and NUMA node of each rank, and the nodes of the memory that it writes."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from shmring.core.base.text import size_text
from shmring.core.memory.spelling import user_prefix
from shmring.core.memory.syscalls import SHM_DIRECTORY
from shmring.core.placement.locality import seat_at
from shmring.watch.find import Group, Job, Machine, Member


class Place(NamedTuple):
    """The place of one rank of a communicator.

    Attributes
    ----------
    session, communicator : str
        As `Job` and `Group` name them.
    rank, pid, processor, node : int
        The processor is the one that its process used last.
    memory : dict of int to int, or None
        Bytes on each node of its outbox and of its shared arrays, of the pages that it has touched. None if the kernel
        does not say.
    """

    session: str
    communicator: str
    rank: int
    pid: int
    processor: int
    node: int
    memory: dict[int, int] | None

    def describe(self) -> str:
        """In a line."""
        by_node = sorted((self.memory or {}).items())
        memory = ", ".join(f"{size_text(nbytes)} on node {node}" for node, nbytes in by_node) or "unknown"
        name = "-".join(filter(None, (self.session, self.communicator)))
        seat = f"processor {self.processor}, node {self.node}"
        return f"{name}: rank {self.rank}, pid {self.pid}, {seat}; its memory: {memory}"


def places(machine: Machine) -> list[Place]:
    """The places of all ranks whose process can be seen."""
    return [
        _place(job, group, one) for job in machine.jobs for group in job.groups for one in group.members if one.process
    ]


def _place(job: Job, group: Group, one: Member) -> Place:
    assert one.process is not None
    pid, processor = one.process.pid, one.process.processor
    segments = "-".join(filter(None, (f"{SHM_DIRECTORY}{user_prefix()}{job.session}", group.name)))
    own = re.compile(rf" file={re.escape(segments)}-(array[^-]*-)?r{one.rank}(\\040|\s)")
    return Place(job.session, group.name, one.rank, pid, processor, seat_at(processor).node, _memory(pid, own))


def _memory(pid: int, segments: re.Pattern[str]) -> dict[int, int] | None:
    """The bytes by node of what a process has mapped of some segments."""
    found: dict[int, int] = {}
    try:
        with open(f"/proc/{pid}/numa_maps") as maps:
            for line in filter(segments.search, maps):
                page = re.search(r"kernelpagesize_kB=(\d+)", line)
                nbytes = int(page[1]) << 10 if page else os.sysconf("SC_PAGESIZE")
                for node, count in re.findall(r"\bN(\d+)=(\d+)", line):
                    found[int(node)] = found.get(int(node), 0) + int(count) * nbytes
    except OSError:
        return None
    return found
