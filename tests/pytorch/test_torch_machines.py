"""Groups over two machines: separate networks, a cable between, and a /dev/shm each, so that mapping truly fails."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support import harness
from support.namespaces import CABLE, enter, needs_machines, two_machines
from torch.nn.parallel import DistributedDataParallel

import shmring
import shmring.torch

pytestmark = needs_machines

RANKS_EACH = 2
N = 2 * RANKS_EACH


def on_machines(rank, machines, fn, *args):
    enter(machines[rank // RANKS_EACH])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    dist.init_process_group("shmring", "tcp://10.0.0.1:29500", timeout=timedelta(seconds=60), rank=rank, world_size=N)
    try:
        return fn(rank, *args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def start(machines, fn, *args):
    return harness.start_processes(N, on_machines, [machine.pid for machine in machines], fn, *args)


def collectives(rank):
    assert dist.group.WORLD.comm.nodes == [[0, 1], [2, 3]]
    for count in (1, 1000, 1_000_000):
        x = torch.full((count,), rank + 0.5, dtype=torch.bfloat16)
        dist.all_reduce(x)
        assert torch.equal(x, torch.full((count,), 8.0, dtype=torch.bfloat16))
        x = torch.arange(count) * rank
        dist.broadcast(x, 3)
        assert torch.equal(x, torch.arange(count) * 3)
        out = torch.empty(N, count)
        dist.all_gather_into_tensor(out, torch.full((count,), float(rank)))
        assert torch.equal(out, torch.arange(float(N))[:, None].expand(N, count))
        if rank < RANKS_EACH:
            dist.send(x, rank + RANKS_EACH)
        else:
            y = torch.empty_like(x)
            assert dist.recv(y) == rank - RANKS_EACH
            assert torch.equal(x, y)
    across = dist.new_group([1, 2])
    if rank in (1, 2):
        x = torch.ones(3)
        dist.all_reduce(x, group=across)
        assert torch.equal(x, torch.full((3,), 2.0))
    model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    model(torch.full((1, 3), float(rank))).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.full((1, 3), 1.5))


def test_collectives_messages_and_training_over_two_machines():
    with two_machines("256m") as machines:
        start(machines, collectives).results()
        assert [machine.names() for machine in machines] == [[], []]


def lost(rank):
    x = torch.ones(10_000)
    with pytest.raises(shmring.BrokenError):
        for _ in range(100_000):
            dist.all_reduce(x)
            if rank >= RANKS_EACH:
                os.kill(os.getpid(), 9)


def test_all_ranks_of_a_machine_killed_are_an_exception_on_the_other():
    with two_machines("256m") as machines:
        outcomes = start(machines, lost).outcomes()
        assert all(outcomes[r].ok for r in range(RANKS_EACH)), outcomes
        assert [machine.names() for machine in machines] == [[], []]


def unplugged(rank):
    x = torch.ones(10)
    dist.all_reduce(x)
    dist.group.WORLD.set_timeout(timedelta(seconds=2))  # not that of the rendezvous
    harness.report("ready")
    time.sleep(1)
    with pytest.raises(dist.DistBackendError) as caught:
        for _ in range(1_000_000):
            dist.all_reduce(x)
    assert isinstance(caught.value, shmring.BrokenError)


def test_a_cable_that_is_pulled_is_an_error_on_both_sides():
    with two_machines("256m") as machines:
        gang = start(machines, unplugged)
        gang.wait_for("ready")
        machines[0].run("ip", "link", "set", CABLE, "down")
        gang.results()
        assert [machine.names() for machine in machines] == [[], []]


def comes_late(rank):
    x = torch.full((1000,), rank + 1.0)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((1000,), 10.0))
    assert dist.group.WORLD.comm.nodes == [[0, 1], [2, 3]]


def on_machines_one_late(rank, *args):
    if rank >= RANKS_EACH:
        time.sleep(3)
    return on_machines(rank, *args)


def test_a_node_that_comes_late_is_awaited():
    with two_machines("256m") as machines:
        pids = [machine.pid for machine in machines]
        harness.start_processes(N, on_machines_one_late, pids, comes_late).results()
        assert [machine.names() for machine in machines] == [[], []]
