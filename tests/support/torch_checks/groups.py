"""Checks of groups that every rank runs, on one node or on several."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import shmring.torch


def again(rank):
    store = dist.distributed_c10d._get_default_store()
    for _ in range(3):
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x == 2
        dist.destroy_process_group()
        dist.init_process_group("shmring", store=store, rank=rank, world_size=2)


def subgroups(rank):
    n = dist.get_world_size()
    pairs = [dist.new_group([a, (a + 1) % n]) for a in range(n)]  # they overlap
    for a, group in enumerate(pairs):
        if rank in (a, (a + 1) % n):
            x = torch.full((4,), float(rank))
            dist.all_reduce(x, group=group)
            assert torch.equal(x, torch.full((4,), float(a + (a + 1) % n)))
            y = torch.full((1,), float(rank))
            dist.broadcast(y, a, group=group)
            assert y == a
    mine, _ = dist.new_subgroups(2)
    assert dist.get_world_size(mine) == 2
    x = torch.ones(1)
    dist.all_reduce(x, group=mine)
    assert x == 2
    small = dist.new_group(list(range(n)), pg_options={"slot_nbytes": 16384, "nslots": 4}, timeout=timedelta(minutes=5))
    assert small.comm.config.slot_nbytes == 16384
    assert small.comm.config.timeout == 300
    gloo = dist.new_group(backend="gloo")
    for group in (small, gloo):
        x = torch.ones(100_000)
        dist.all_reduce(x, group=group)
        assert torch.equal(x, torch.full((100_000,), float(n)))
    dist.destroy_process_group(small)
    with pytest.raises(TypeError, match="pg_options"):
        dist.new_group(pg_options=[1])


def meshes(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    for name, peers in (("outer", (rank % 2, rank % 2 + 2)), ("inner", (rank - rank % 2, rank - rank % 2 + 1))):
        x = torch.full((2,), float(rank))
        dist.all_reduce(x, group=mesh.get_group(name))
        assert torch.equal(x, torch.full((2,), float(sum(peers))))
        assert isinstance(mesh.get_group(name), shmring.torch.ProcessGroup)


def late(rank):
    quick = dist.new_group()
    quick.set_timeout(timedelta(seconds=2))  # not that of the rendezvous
    dist.barrier()
    if rank == 0:
        started = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r" Timed out after 2000 ms: .*(rank 1|other nodes)") as caught:
            dist.all_reduce(torch.ones(1), group=quick)
        assert time.monotonic() - started >= 2
        assert isinstance(caught.value, shmring.CollectiveTimeoutError)
        assert caught.value.late == ((1,) if quick.comm.nodes is None else ())  # gloo does not tell
    dist.barrier()


def late_to_a_new_group(rank):
    """The timeout of the new group counts, neither that of the store nor that of the default group."""
    store, minutes = dist.distributed_c10d._get_default_store(), timedelta(minutes=10)
    store.set_timeout(timedelta(seconds=0.1))
    dist.group.WORLD.set_timeout(timedelta(seconds=0.1))
    if rank == 0:
        time.sleep(0.5)
    group = dist.new_group([0, 1], timeout=minutes)
    dist.group.WORLD.set_timeout(minutes)
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert x[0] == 2
    store.set_timeout(minutes)
    if rank == 0:
        store.get("rank 1 has given up")
    else:
        with pytest.raises(dist.DistBackendError, match="rank 0 did not come to make the group") as caught:
            dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
        assert isinstance(caught.value, shmring.RendezvousError)
        store.set("rank 1 has given up", "")


def set_later(rank):
    store = dist.distributed_c10d._get_default_store()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5))
    if rank == 0:
        with pytest.raises(RuntimeError, match=" Timed out after 500 ms"):
            dist.barrier()
        dist.group.WORLD.abort()
        store.set("timed out", "")
    else:
        store.get("timed out")


def monitored(rank):
    n = dist.get_world_size()
    for wait_all in (False, True):
        shmring.torch.monitored_barrier(wait_all_ranks=wait_all)
        patience = timedelta(seconds=0.3)
        if rank in (1, n - 1):
            pass
        elif rank == 0:
            while not all(dist.group.WORLD.comm.iprobe(r) for r in range(2, n - 1)):
                time.sleep(0.005)
            late = "Ranks 1, 3" if wait_all else "Rank 1"
            with pytest.raises(RuntimeError, match=f"{late} failed to pass monitoredBarrier in 300 ms"):
                shmring.torch.monitored_barrier(timeout=patience, wait_all_ranks=wait_all)
        else:
            with pytest.raises(RuntimeError, match=f"Rank {rank} successfully reached monitoredBarrier, but"):
                shmring.torch.monitored_barrier(timeout=timedelta(seconds=60))
        dist.barrier()  # usable as before
        if rank in (1, n - 1):  # come when it is over
            with pytest.raises(RuntimeError, match="successfully reached"):
                shmring.torch.monitored_barrier(timeout=timedelta(seconds=0.1))
        dist.barrier()


def monitored_by_gloo(rank):
    """As `monitored`; but then the connections are closed."""
    for wait_all in (False, True):
        shmring.torch.monitored_barrier(wait_all_ranks=wait_all)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier in 300 ms"):
            shmring.torch.monitored_barrier(timeout=timedelta(seconds=0.3))
        store.set("rank 1 was late", "")
    elif rank == 1:
        store.get("rank 1 was late")
    else:
        with pytest.raises(RuntimeError, match=f"Rank {rank} successfully reached monitoredBarrier, but"):
            shmring.torch.monitored_barrier(timeout=timedelta(seconds=60))
