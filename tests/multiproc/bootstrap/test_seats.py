"""All ranks compute the same domains from their locations, and groups from those of their members."""

from support.forced_topology import run_ranks_on

TWO_NODES = {
    "processors": "0-7",
    "packages": ["0-3", "4-7"],
    "nodes": [
        {"number": 0, "processors": "0-3", "distances": [10, 21]},
        {"number": 1, "processors": "4-7", "distances": [21, 10]},
    ],
}


def seen(comm):
    with comm.split(comm.rank % 2) as group:
        return comm._engine.thresholds.domains, group._engine.thresholds.domains


def test_all_ranks_see_the_same_domains_and_groups_keep_the_seats():
    for whole, part in run_ranks_on(TWO_NODES, 4, seen):
        assert whole.nodes == whole.packages == whole.caches == (0, 0, 1, 1)
        assert whole.levels == ((0, 0, 1, 1),)
        assert part.nodes == (0, 1)
