"""Where ranks and their memory lie, as `shmring info` shows it."""

import json
import os

import numpy as np
import pytest
from support.on_ranks import on_ranks
from support.programs import run_shmring

from shmring.core.placement.numa import bytes_by_node
from shmring.watch.find import look_at_jobs
from shmring.watch.places import places

ARRAY_NBYTES = 1 << 20


def own(comm, of_dup=False):
    """The place of this rank in its job's first communicator, or in another."""
    (place,) = [one for one in places(look_at_jobs()) if one.pid == os.getpid() and bool(one.communicator) == of_dup]
    assert place.rank == comm.rank
    return place


@on_ranks(2)
def test_a_rank_has_its_outbox_and_its_arrays_and_not_those_of_others(comm):
    x = np.ones(ARRAY_NBYTES, np.uint8)
    comm.sendrecv(x, 1 - comm.rank, np.empty_like(x), 1 - comm.rank)  # both map the queues of the other
    comm.barrier()
    place = own(comm)
    assert place.processor in os.sched_getaffinity(0)
    if place.memory is None:
        pytest.skip("the kernel does not count pages by node")
    assert place.memory == bytes_by_node(comm._engine.segments[comm.rank].mapping)
    with comm.dup() as other:
        assert own(comm).memory == place.memory  # each communicator by itself
        assert own(comm, of_dup=True).memory == bytes_by_node(other._engine.segments[other.rank].mapping)
        comm.barrier()
    array = comm.array(x)
    comm.all_reduce(array)
    grown = sum(own(comm).memory.values()) - sum(place.memory.values())
    assert ARRAY_NBYTES <= grown < 2 * ARRAY_NBYTES
    comm.barrier()


@on_ranks(2)
def test_info_lists_the_ranks_of_a_running_job(comm):
    if comm.rank == 0:
        pids = set(comm.all_gather_object(os.getpid()))
        found = [one for one in json.loads(run_shmring("info", "--json").stdout)["ranks"] if one["pid"] in pids]
        assert [one["rank"] for one in found] == [0, 1]
        lines = run_shmring("info").stdout.splitlines()
        assert sum(f", pid {pid}, processor " in line for pid in pids for line in lines) == 2
    else:
        comm.all_gather_object(os.getpid())
    comm.barrier()
