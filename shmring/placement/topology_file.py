"""Topologies as files: written by ``shmring info --topology-json``, forced by ``SHMRING_TOPOLOGY=FILE``.

A file is one JSON object with the fields of `shmring.placement.topology.Topology`, sets of processors in the kernel's
list format (``"0-7,64-71"``). Only ``processors`` is required, so that a file can be written by hand;
``docs/placement.md`` has the format.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict, fields
from typing import Any

from shmring.base.text import spans
from shmring.placement.sysfs import among, parse_list
from shmring.placement.topology import Cache, Node, Topology, discover

ENVIRON = "SHMRING_TOPOLOGY"
GROUPS = ("cores", "packages", "last_level_groups")


def topology() -> Topology:
    """The machine as this process may use it, or the topology that ``SHMRING_TOPOLOGY`` forces.

    Returns
    -------
    Topology
        Processors, cores, packages, NUMA nodes, caches; ``print(shmring.topology().describe())`` draws it.

    Raises
    ------
    ValueError
        The variable names no file, or one that describes no topology.

    Notes
    -----
    Reads some twenty small files a processor; nothing is raised for what cannot be read there.
    """
    path = os.environ.get(ENVIRON)
    return load(path) if path else discover()


def dump(topology: Topology) -> str:
    """A topology as text for a file."""
    facts = asdict(topology)
    facts["processors"] = spans(topology.processors)
    for name in GROUPS:
        facts[name] = [spans(group) for group in getattr(topology, name)]
    for name in ("nodes", "caches"):
        facts[name] = [member | {"processors": spans(member["processors"])} for member in facts[name]]
    return json.dumps(facts, indent=2)


@functools.lru_cache(maxsize=1)  # every group that a process belongs to asks
def load(path: str) -> Topology:
    """The topology in a file; `ValueError`, which names the place, if it cannot be read or is not a topology."""
    try:
        with open(path) as file:
            return parse(json.load(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{ENVIRON}={path}: {error or type(error).__name__}") from None


def parse(facts: dict[str, Any]) -> Topology:
    """The topology that a JSON object describes."""
    if unknown := set(facts) - {field.name for field in fields(Topology)}:
        raise ValueError(f"a topology has no keys {', '.join(sorted(unknown))}")
    processors = parse_list(facts.get("processors", ""))
    if not processors:
        raise ValueError('"processors" is empty: list some, such as "0-7,64-71"')
    packages = _groups(facts, "packages", processors, [processors])
    nodes = tuple(
        Node(
            int(node["number"]),
            _subset(f"node {node['number']}", node.get("processors", ""), processors),
            int(node.get("memory_nbytes", 0)),
            int(node.get("free_nbytes", 0)),
            tuple(int(d) for d in node.get("distances", ())),
        )
        for node in facts.get("nodes", ())
    )
    caches = tuple(
        Cache(
            int(cache["level"]),
            int(cache.get("nbytes", 0)),
            int(cache.get("line_nbytes", 0)),
            _subset("a cache", cache["processors"], processors),
        )
        for cache in facts.get("caches", ())
    )
    return Topology(
        model=str(facts.get("model", "")),
        architecture=str(facts.get("architecture", "")),
        processors=processors,
        usable=float(facts.get("usable", len(processors))),
        cores=_groups(facts, "cores", processors, [(number,) for number in processors]),
        packages=packages,
        nodes=nodes or (Node(0, processors, 0, 0, (10,)),),
        caches=caches,
        last_level_groups=_groups(facts, "last_level_groups", processors, packages),
        shmem_huge_pages=str(facts.get("shmem_huge_pages", "")),
        shm_nbytes=int(facts.get("shm_nbytes", 0)),
        shm_free_nbytes=int(facts.get("shm_free_nbytes", -1)),
    )


def _groups(facts: dict[str, Any], name: str, processors: tuple[int, ...], default) -> tuple[tuple[int, ...], ...]:
    """Sets of processors, each processor in one of them."""
    groups = tuple(_subset(name, group, processors) for group in facts.get(name, ())) or tuple(default)
    if sorted(number for group in groups for number in group) != list(processors):
        raise ValueError(f'"{name}" must hold each of "processors" once')
    return groups


def _subset(what: str, text: str, processors: tuple[int, ...]) -> tuple[int, ...]:
    numbers = parse_list(text)
    if among(numbers, processors) != numbers:
        raise ValueError(f'{what} has {text}, which is not among "processors"')
    return numbers
