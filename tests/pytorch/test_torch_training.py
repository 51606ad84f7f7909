"""What people run on torch.distributed, each beside the same in one process, or beside gloo.

What is imported here is there when ranks are forked; torch would load some of it as it is used, which takes seconds.
"""

import copy
import os
import tempfile

import pytest
import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as with_gradients
import torch.nn as nn
from support.torch_checks.training import STEPS, alone, batch, close, ddp, small_model, train
from support.torch_groups import on_group, run_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


@pytest.mark.parametrize("n", [1, 2, 3])
def test_data_parallel_training_with_every_hook_equals_one_process(n):
    run_group(n, ddp)


@on_group(2)
def test_data_parallel_training_has_the_bits_of_gloo(rank):
    gloo = dist.new_group(backend="gloo")
    own = [batch(s, rank) for s in range(STEPS)]
    found = train(DistributedDataParallel(small_model()), own)
    wanted = train(DistributedDataParallel(small_model(), process_group=gloo), own)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    embedding = nn.Embedding(50, 3, sparse=True).double()
    for group in (None, gloo):
        model = DistributedDataParallel(copy.deepcopy(embedding), process_group=group)
        model(torch.tensor([1, 1, 7 + rank])).sum().backward()
        gradient = model.module.weight.grad.to_dense()
        assert gradient[1, 0] == 2
        assert gradient[8, 0] == 0.5
    model = DistributedDataParallel(small_model())
    with model.join():  # ranks with another number of batches
        train(model, [batch(s, rank) for s in range(2 + rank)])


@on_group(2)
def test_zero_redundancy_optimizer(rank):
    n = dist.get_world_size()
    model = DistributedDataParallel(small_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    close(train(model, [batch(s, rank) for s in range(STEPS)], optimizer), alone(n))
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        assert optimizer.state_dict()["state"]


@on_group(1, 2, 3)
def test_fully_sharded_training_of_both_kinds(rank):
    n = dist.get_world_size()
    own = [batch(s, rank) for s in range(STEPS)]
    first = FullyShardedDataParallel(small_model(), device_id=torch.device("cpu"))
    train(first, own)
    with FullyShardedDataParallel.summon_full_params(first):
        close([p.detach().clone() for p in first.parameters()], alone(n))
    for zero_copy in (False, True):
        second = small_model()
        mesh = init_device_mesh("cpu", (n,))
        for layer in second:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh).set_allocate_memory_from_process_group_for_comm(zero_copy)
        fully_shard(second, mesh=mesh)
        train(second, own)
        close([p.full_tensor().detach() for p in second.parameters()], alone(n))


@on_group(2, 3)
def test_tensors_over_a_mesh_and_tensor_parallel_layers(rank):
    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    torch.manual_seed(1)
    whole = torch.randn(7, 6)
    for placement in (Shard(0), Shard(1), Replicate()):
        shared = distribute_tensor(whole, mesh, [placement])
        assert torch.equal(shared.full_tensor(), whole)
        for other in (Shard(0), Shard(1), Replicate()):
            assert torch.equal(shared.redistribute(mesh, [other]).full_tensor(), whole)
    total = distribute_tensor(whole, mesh, [Shard(0)]).sum()
    assert isinstance(total, DTensor)
    torch.testing.assert_close(total.full_tensor(), whole.sum())
    model, x = small_model(), batch(0, 0)[0]
    wanted = model(x)
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    found = model(x)
    close([found.detach()], [wanted.detach()])
    found.sum().backward()


@on_group(2)
def test_a_pipeline(rank):
    n = dist.get_world_size()
    layers = list(small_model())
    halves = [nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])]
    x, y = batch(0, 0)
    stage = PipelineStage(halves[rank], rank, n, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    if rank == 0:
        schedule.step(x)
    else:
        losses = []
        out = schedule.step(target=y, losses=losses)
        model = small_model()
        close([out.detach()], [model(x).detach()])
        nn.functional.mse_loss(model(x), y).backward()
        wanted = [p.grad for p in model[2:].parameters()]
        close([p.grad for p in halves[1].parameters()], wanted, 1e-9)


def checkpoint(rank, place):
    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    whole = torch.arange(24.0).reshape(8, 3)
    dcp.save({"a": distribute_tensor(whole, mesh, [Shard(0)]), "n": 7}, checkpoint_id=f"{place}/one")
    empty = {"a": distribute_tensor(torch.zeros(8, 3), mesh, [Shard(1)]), "n": 0}
    dcp.load(empty, checkpoint_id=f"{place}/one")
    assert torch.equal(empty["a"].full_tensor(), whole)
    assert empty["n"] == 7
    dcp.async_save({"a": torch.ones(2)}, checkpoint_id=f"{place}/two").result()
    dist.barrier()
    assert os.path.exists(f"{place}/two/.metadata")


def test_distributed_checkpoints():
    with tempfile.TemporaryDirectory() as place:
        run_group(2, checkpoint, place)


@on_group(1, 2, 3)
def test_functional_collectives_and_those_with_gradients(rank):
    n = dist.get_world_size()
    group = dist.group.WORLD
    x = torch.full((n, 2), float(rank + 1))
    total = float(sum(range(1, n + 1)))
    assert torch.equal(fc.all_reduce(x, "sum", group) + 0, torch.full((n, 2), total))
    assert torch.equal(fc.all_gather_tensor(x, 0, group)[:, 0] + 0, torch.arange(1.0, n + 1).repeat_interleave(n))
    assert torch.equal(fc.reduce_scatter_tensor(x, "sum", 0, group) + 0, torch.full((1, 2), total))
    assert torch.equal(fc.all_to_all_single(x, None, None, group)[:, 0] + 0, torch.arange(1.0, n + 1))
    assert torch.equal(fc.broadcast(x, 0, group) + 0, torch.ones(n, 2))
    several = fc.all_reduce_coalesced([x, x * 2], "avg", group)
    assert torch.equal(several[1] + 0, torch.full((n, 2), 2 * total / n))
    for _ in range(2):
        leaf = torch.full((2,), float(rank + 1), requires_grad=True)
        (with_gradients.all_reduce(leaf) * (rank + 1)).sum().backward()
        assert torch.equal(leaf.grad, torch.full((2,), total))


@on_group(2)
def test_collectives_stay_in_a_compiled_graph(rank):
    n = dist.get_world_size()

    def step(x):
        y = x * 2
        dist.all_reduce(y)
        out = torch.empty(n * y.shape[0])
        dist.all_gather_into_tensor(out, y)
        return out + 1

    x = torch.full((4,), float(rank))
    wanted = step(x)
    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(x), wanted)
