"""All ranks compute the same domains from a forced topology, and a rank has the same place in every group."""

import json

from support.harness import run_processes, run_ranks

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
        return comm.engine.thresholds.domains, group.engine.thresholds.domains


def test_all_ranks_see_the_same_domains_and_groups_keep_the_seats(tmp_path):
    path = tmp_path / "two-nodes.json"
    path.write_text(json.dumps(TWO_NODES))
    found = run_ranks(4, seen, env={"SHMRING_TOPOLOGY": str(path)})
    for whole, part in found:
        assert whole.nodes == whole.packages == whole.caches == (0, 0, 1, 1)
        assert whole.levels == ((0, 0, 1, 1),)
        assert part.nodes == (0, 1)
        assert part.distances == ((10, 21), (21, 10))


def refused(rank):
    import shmring

    try:
        shmring.init(rank=rank, size=1, session="forced-by-nothing")
    except ValueError as error:
        return str(error)


def test_a_file_that_describes_no_topology_is_refused_before_the_rendezvous(tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text('{"processors": "0-3", "packages": ["0-1"]}')
    (text,) = run_processes(1, refused, env={"SHMRING_TOPOLOGY": str(path)})
    assert text == f'SHMRING_TOPOLOGY={path}: "packages" must hold each of "processors" once'
