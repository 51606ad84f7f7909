"""Recorded machines, read whole: groups, distances, seats, domains of ranks, and how ranks are bound."""

import pytest
from support.forced_topology import parse, seat_of
from support.machines import MACHINES

from shmring.core.placement.cpu_binding import masks
from shmring.core.placement.locality import Domains, packed_order, seat_at
from shmring.core.placement.numa_policy import memory_nodes
from shmring.core.placement.topology import discover
from shmring.core.placement.topology_file import dump


@pytest.fixture(params=MACHINES, scope="module")
def machine(request, tmp_path_factory):
    """Each machine's name; as the arguments of `discover`; and what that found. Thousands of files: written once."""
    roots = MACHINES[request.param].write(tmp_path_factory.mktemp(request.param))
    return request.param, roots, discover(**roots)


# processors, usable, cores, packages, nodes with processors, last-level caches
COUNTS = {
    "xeon": (32, 32, 16, 2, 2, 2),
    "xeon-clusters": (80, 80, 40, 2, 4, 2),
    "epyc": (64, 64, 64, 2, 2, 16),
    "grace": (72, 72, 72, 1, 1, 1),
    "kunpeng": (128, 128, 128, 2, 4, 4),
    "laptop": (20, 20, 14, 1, 1, 1),
    "gb10": (20, 20, 20, 1, 1, 2),
    "container": (4, 1.5, 3, 2, 2, 2),
    "lying-vm": (2, 2, 2, 1, 1, 1),
}


def test_all_that_is_there_is_counted(machine):
    name, _, found = machine
    counts = (len(found.processors), found.usable, len(found.cores), len(found.packages))
    inhabited = [node for node in found.nodes if node.processors]
    assert (*counts, len(inhabited), len(found.last_level_groups)) == COUNTS[name]


def test_a_topology_written_and_read_is_the_same(machine):
    import json

    _, _, found = machine
    assert parse(json.loads(dump(found))) == found


def test_seats_read_from_sysfs_and_from_a_description_make_the_same_domains(machine):
    _, roots, found = machine
    by_sysfs = Domains.of([seat_at(n, roots["sysfs"]) for n in found.processors])
    assert by_sysfs == Domains.of([seat_of(found, n) for n in found.processors])


def test_each_level_lies_inside_the_next(machine):
    _, roots, topology = machine
    found = Domains.of([seat_at(n, roots["sysfs"]) for n in topology.processors])
    for fine, coarse in zip(found.levels, found.levels[1:], strict=False):
        assert len(set(zip(fine, coarse, strict=True))) == len(set(fine))
        assert max(fine) > max(coarse)


@pytest.mark.parametrize(
    ("name", "levels"),
    [("xeon", [2]), ("xeon-clusters", [4, 2]), ("epyc", [16, 2]), ("kunpeng", [4, 2]), ("gb10", [2]), ("laptop", [])],
)
def test_levels_of_ranks_on_every_core(name, levels, tmp_path):
    roots = MACHINES[name].write(tmp_path)
    topology = discover(**roots)
    ranks = masks(topology, len(topology.cores), "core")
    found = Domains.of([seat_at(mask[0], roots["sysfs"]) for mask in ranks])
    assert [max(way) + 1 for way in found.levels] == levels


def test_distances_are_those_of_the_firmware(tmp_path):
    roots = MACHINES["kunpeng"].write(tmp_path)
    assert [node.distances for node in discover(**roots).nodes] == [
        (10, 16, 32, 33), (16, 10, 25, 32), (32, 25, 10, 16), (33, 32, 16, 10),
    ]  # fmt: skip


def test_memory_is_where_there_is_some_and_we_may_use_it(tmp_path):
    def nodes(name):
        roots = MACHINES[name].write(tmp_path / name)
        return memory_nodes(roots["sysfs"], roots["procfs"])

    assert nodes("xeon-clusters") == (0, 1, 2, 3)
    assert nodes("grace") == (0,)
    assert nodes("container") == (0,)


@pytest.mark.parametrize("unit", ["core", "l3", "numa"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 200])
def test_bound_ranks_fill_units_in_order_and_evenly(machine, size, unit):
    _, _, topology = machine
    found = masks(topology, size, unit)
    units = {
        "core": topology.cores,
        "l3": topology.last_level_groups,
        "numa": [node.processors for node in topology.nodes if node.processors],
    }[unit]
    assert all(mask in units for mask in found)
    crowds = [found.count(mask) for mask in units]
    assert max(crowds) - min(crowds) <= 1
    place = packed_order(topology).index
    assert sorted(found, key=lambda mask: place(mask[0])) == found


def test_a_cache_that_holds_nodes_is_drawn_around_them(tmp_path):
    topology = discover(**MACHINES["xeon-clusters"].write(tmp_path))
    drawing = topology.describe().splitlines()
    assert drawing[0].startswith("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz (")
    assert "80 processors on 40 cores allowed" in drawing[0]
    even, quarter = (",".join(map(str, range(start, 80, step))) for start, step in ((0, 2), (0, 4)))
    assert drawing[1:4] == [
        f"package 0: {even}",
        f"└─ {even} share 27.5 MiB of level-3 cache",
        f"   ├─ node 0: {quarter}; 370.5 GiB memory, 0 B free",
    ]


def test_neighbours_on_chiplets_share_one(tmp_path):
    topology = discover(**MACHINES["epyc"].write(tmp_path))
    assert masks(topology, 64, "core")[:5] == [(0,), (1,), (2,), (3,), (4,)]
    assert masks(topology, 16, "l3")[7:9] == [(28, 29, 30, 31), (32, 33, 34, 35)]
    assert masks(topology, 2, "numa") == [tuple(range(32)), tuple(range(32, 64))]
    assert masks(topology, 3, "none") == [tuple(range(64))] * 3
    with pytest.raises(ValueError, match="bind='socket': must be one of core, l3, numa, none"):
        masks(topology, 2, "socket")
