"""NUMA policy of segments: the node on which their memory is allocated.

Memory is allocated on the node of the rank that *writes* it. For every segment that is its creator; in a shared result
every rank writes a slice. Why the writer (``docs/placement.md``): a store to memory of another node transfers the line
there and back, a load transfers it once; and an outbox has many readers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from shmring.core.base.sysfs import parse_list, read
from shmring.core.base.text import spans
from shmring.core.memory.mapping import Mapping
from shmring.core.memory.segment import Place
from shmring.core.placement.numa import current_node, has_thread_policy, lay


def memory_nodes(sysfs: str = "/sys", procfs: str = "/proc") -> tuple[int, ...]:
    """The nodes with memory that this process may use; node 0 where nodes are unknown."""
    nodes = parse_list(read(Path(sysfs) / "devices/system/node/has_memory")) or (0,)
    match = re.search(r"^Mems_allowed_list:\s*(\S+)", read(Path(procfs) / "self/status"), re.MULTILINE)
    allowed = parse_list(match[1]) if match else nodes
    return tuple(node for node in nodes if node in allowed) or nodes


def place_by(policy: str, nodes: Sequence[int] | None = None) -> Place | None:
    """The function that applies a policy to a rank's own segments; None: nothing to do.

    ``policy`` is that of `shmring.config.Config.placement`; ``nodes`` are those with memory, by default this machine's.
    `ValueError` if the policy names a node that has no memory, or none for us.
    """
    nodes = memory_nodes() if nodes is None else nodes
    if policy.startswith("bind:"):
        node = int(policy[5:])
        if node not in nodes:
            raise ValueError(f"placement={policy!r}: the nodes with memory for this process are {spans(nodes)}")
        return lambda mapping, offset, nbytes: lay(mapping, offset, nbytes, (node,))
    if len(nodes) < 2 or policy == "local":
        return None
    if policy == "interleave":
        return lambda mapping, offset, nbytes: lay(mapping, offset, nbytes, nodes)
    return None if has_thread_policy() else _with_writer


def _with_writer(mapping: Mapping, offset: int, nbytes: int) -> None:
    """Where this thread runs now, which may be elsewhere than when the segment was made."""
    node = current_node()
    if node >= 0:
        lay(mapping, offset, nbytes, (node,))


def in_slices(place: Place | None, bounds: Sequence[int], homes: Sequence[int]) -> Place | None:
    """The function that places a segment whose slice i, from bounds[i] to bounds[i + 1], is written on node homes[i].

    Only where ``place`` is the choice of the policy ``auto``; any other holds for slices, too.
    """
    if place is not _with_writer or min(homes) < 0:
        return place

    def slices(mapping: Mapping, offset: int, nbytes: int) -> None:
        first = 0
        for i in range(1, len(homes) + 1):
            if i == len(homes) or homes[i] != homes[first]:
                lay(mapping, bounds[first], bounds[i] - bounds[first], (homes[first],))
                first = i

    return slices
