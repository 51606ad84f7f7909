"""The topology of this machine: for programs, and as JSON (``shmring info --topology-json``)."""

from __future__ import annotations

import json
from dataclasses import asdict

from shmring.core.base.text import spans
from shmring.core.placement.topology import Topology, discover

GROUPS = ("cores", "packages", "last_level_groups")


def topology() -> Topology:
    """The machine as this process may use it.

    Returns
    -------
    Topology
        Processors, cores, packages, NUMA nodes, caches; ``print(shmring.topology().describe())`` draws it.

    Notes
    -----
    Reads some twenty small files a processor; nothing is raised for what cannot be read there.
    """
    return discover()


def dump(topology: Topology) -> str:
    """A topology as one JSON object: its fields, sets of processors in the kernel's list format (``"0-7,64-71"``)."""
    facts = asdict(topology)
    facts["processors"] = spans(topology.processors)
    for name in GROUPS:
        facts[name] = [spans(group) for group in getattr(topology, name)]
    for name in ("nodes", "caches"):
        facts[name] = [member | {"processors": spans(member["processors"])} for member in facts[name]]
    return json.dumps(facts, indent=2)
