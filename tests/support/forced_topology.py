"""Ranks on another machine: a description takes the place of what they read of this one."""

import secrets

from shmring.collectives.bootstrap import connect
from shmring.core.base.sysfs import parse_list
from shmring.core.placement.locality import Seat, packed_order
from shmring.core.placement.topology import Cache, Node, Topology
from shmring.core.placement.topology_file import GROUPS
from support.harness import run_processes, with_communicator


def run_ranks_on(facts, n, fn, *args, init=None, env=None):
    """`run_ranks` on the machine that ``facts`` describe (`parse`), consecutive ranks side by side.

    Domains, and so plans, follow the description; masks, thresholds and the place of memory follow this machine.
    """
    seats = seats_of(parse(facts), n)
    return run_processes(n, _seated, seats, secrets.token_hex(8), init or {}, fn, args, env=env)


def _seated(rank, seats, session, init, fn, args):
    connect.own_seat = lambda: seats[rank]  # in this process, which ends with the rank
    return with_communicator(rank, len(seats), session, init, fn, args)


def seats_of(topology, size):
    """The locations of ranks that are assigned to all processors in blocks; more ranks than processors go round."""
    order = packed_order(topology)
    numbers = [order[rank * len(order) // size if size <= len(order) else rank % len(order)] for rank in range(size)]
    return [seat_of(topology, number) for number in numbers]


def seat_of(topology, processor):
    """The location of a processor in a topology."""
    package, cache = (
        next(i for i, group in enumerate(groups) if processor in group)
        for groups in (topology.packages, topology.last_level_groups)
    )
    node = next((node.number for node in topology.nodes if processor in node.processors), 0)
    return Seat(processor, cache, node, package)


# What a description may leave out, besides sets of processors.
NO_TEXT = dict.fromkeys(("model", "architecture", "shmem_huge_pages"), "")
DEFAULTS = NO_TEXT | {"shm_nbytes": 0, "shm_free_nbytes": -1, "caches": ()}
NODE_DEFAULTS = {"memory_nbytes": 0, "free_nbytes": 0, "distances": ()}


def parse(facts):
    """The topology that a dictionary describes: `dump` of one, or a part, in which ``processors`` must be."""
    processors = parse_list(facts["processors"])
    sets = {"packages": [facts["processors"]], "cores": map(str, processors)} | facts
    sets.setdefault("last_level_groups", sets["packages"])
    nodes = facts.get("nodes", [{"number": 0, "processors": facts["processors"]}])
    whole = {**DEFAULTS, "usable": len(processors), **facts, "processors": processors}
    whole |= {name: tuple(map(parse_list, sets[name])) for name in GROUPS}
    whole["nodes"] = tuple(Node(**(NODE_DEFAULTS | _parsed(node))) for node in nodes)
    whole["caches"] = tuple(Cache(**_parsed(cache)) for cache in whole["caches"])
    return Topology(**whole)


def _parsed(facts):
    """The fields of a node or cache, as `Topology` has them."""
    lists = {"distances": tuple(facts["distances"])} if "distances" in facts else {}
    return facts | lists | {"processors": parse_list(facts["processors"])}
