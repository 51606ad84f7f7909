"""Domains: nested groups of ranks that share a part of the machine; the place of a rank, here and on other machines."""

import os

import pytest
from support.forced_topology import parse, seats_of

from shmring.core.placement.locality import SEAT_NBYTES, Domains, Seat, packed_order, seat_at
from shmring.core.placement.topology_file import topology

# Two packages of 64 cores, 8 last-level caches of 8 cores in each, hardware threads numbered last (Zen 3, 2 x 64).
CHIPLETS = {
    "processors": "0-255",
    "cores": [f"{n},{n + 128}" for n in range(128)],
    "packages": ["0-63,128-191", "64-127,192-255"],
    "last_level_groups": [f"{n}-{n + 7},{n + 128}-{n + 135}" for n in range(0, 128, 8)],
    "nodes": [
        {"number": 0, "processors": "0-63,128-191", "distances": [10, 32]},
        {"number": 1, "processors": "64-127,192-255", "distances": [32, 10]},
    ],
}

# Two packages, each two nodes under one last-level cache (sub-NUMA clusters).
CLUSTERS = {
    "processors": "0-15",
    "packages": ["0-7", "8-15"],
    "nodes": [
        {"number": n, "processors": f"{4 * n}-{4 * n + 3}", "distances": row}
        for n, row in enumerate([[10, 12, 21, 21], [12, 10, 21, 21], [21, 21, 10, 12], [21, 21, 12, 10]])
    ],
}


def dealt(facts, size):
    return Domains.of(seats_of(parse(facts), size))


def test_ranks_dealt_over_chiplets_divide_by_caches_then_by_packages():
    found = dealt(CHIPLETS, 64)
    assert found.caches == tuple(rank // 4 for rank in range(64))
    assert found.nodes == found.packages == tuple(rank // 32 for rank in range(64))
    assert found.levels == (found.caches, found.nodes)


def test_nodes_inside_of_a_cache_are_the_finer_level():
    found = dealt(CLUSTERS, 8)
    assert found.nodes == (0, 0, 1, 1, 2, 2, 3, 3)
    assert found.caches == found.packages == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found.levels == (found.nodes, found.packages)


@pytest.mark.parametrize(("size", "levels"), [(1, 0), (2, 0), (3, 1), (16, 1), (17, 2), (300, 3)])
def test_what_leaves_all_together_or_all_alone_is_no_level(size, levels):
    assert len(dealt(CHIPLETS, size).levels) == min(levels, 2)


def test_each_level_lies_inside_the_next_whatever_the_machine_claims():
    # Caches and nodes that cross each other: no machine, but a hypervisor may say so.
    seats = [Seat(r, cache=r % 3, node=r % 2, package=0) for r in range(12)]
    found = Domains.of(seats)
    for fine, coarse in zip(found.levels, found.levels[1:], strict=False):
        assert len(set(zip(fine, coarse, strict=True))) == len(set(fine))
    assert [max(way) + 1 for way in found.levels] == [6, 2]


def test_parts_are_numbered_as_they_appear():
    found = Domains.of([Seat(package=5, node=7), Seat(package=2, node=3), Seat(package=5, node=7)])
    assert found.nodes == (0, 1, 0)


def test_a_seat_arrives_as_it_was_sent():
    seat = Seat(255, -1, 63, -1)
    assert Seat.unpack(seat.pack()) == seat


def test_packed_order_keeps_threads_of_a_core_and_cores_of_a_cache_together():
    order = packed_order(parse(CHIPLETS))
    assert order[:6] == (0, 128, 1, 129, 2, 130)
    assert order[16] == 8
    assert order[128] == 64


def test_a_seat_of_which_nothing_is_known_is_all_zeros():
    assert Seat().pack() == bytes(SEAT_NBYTES)


def test_this_machine_seats_every_processor_once():
    seats = [seat_at(processor) for processor in sorted(os.sched_getaffinity(0))]
    assert [seat.processor for seat in seats] == sorted(os.sched_getaffinity(0))


def test_a_machine_of_which_nothing_is_known_is_one_domain(tmp_path):
    seats = [seat_at(processor, str(tmp_path)) for processor in range(4)]
    assert Domains.of(seats).levels == ()
    assert {seat.node for seat in seats} == {0}


def test_processors_without_known_caches_are_apart_if_their_packages_are(tmp_path):
    for processor, package in ((0, 0), (1, 0), (2, 3)):
        folder = tmp_path / f"devices/system/cpu/cpu{processor}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
    caches = [seat_at(processor, str(tmp_path)).cache for processor in range(3)]
    assert caches == [-1, -1, -4]  # no cache of a processor has such a number


def test_the_topology_is_that_of_the_processors_that_this_process_may_use():
    assert set(topology().processors) == os.sched_getaffinity(0)
