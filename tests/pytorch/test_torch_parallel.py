"""What is cut in several ways: schedules of pipelines, meshes of two dimensions, checkpoints for other shares.

Each beside the same in one process. And functional collectives and reductions in the forms that are rare.
"""

import copy
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.distributed.checkpoint as dcp
import torch.export
import torch.nn as nn
from support.torch_groups import on_group, run_group
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

NMICROBATCHES = 8


def layers_of(count):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).double() for _ in range(count)]


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 6, generator=generator).double(), torch.randn(8, 6, generator=generator).double()


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.full_tensor() if isinstance(a, DTensor) else a, b, rtol=1e-10, atol=1e-12)


# ---- pipelines -------------------------------------------------------------------------------------------------------


IN_A_V = (ScheduleZBVZeroBubble, ScheduleDualPipeV)  # the first rank has the first stage and the last


def pipeline(rank, kind, nstages):
    n = dist.get_world_size()
    layers, alone = layers_of(nstages), nn.Sequential(*layers_of(nstages))
    own = [rank, nstages - 1 - rank] if kind in IN_A_V else list(range(rank, nstages, n))
    has_last = nstages - 1 in own
    stages = [PipelineStage(layers[k], k, nstages, torch.device("cpu")) for k in own]
    loss = nn.functional.mse_loss
    schedule = kind(stages if nstages > n else stages[0], n_microbatches=NMICROBATCHES, loss_fn=loss)
    for step in range(2):
        for module in (alone, *layers):
            module.zero_grad()
        x, y = batch(step)
        losses = []
        out = schedule.step(*((x,) if rank == 0 else ()), **({"target": y, "losses": losses} if has_last else {}))
        wanted = alone(x)
        whole = loss(wanted, y)
        whole.backward()
        if has_last:
            close([out.detach(), torch.stack(losses).mean().detach()], [wanted.detach(), whole.detach()])
        for k in own:
            close([p.grad for p in layers[k].parameters()], [p.grad for p in alone[k].parameters()])


@pytest.mark.parametrize(
    ("kind", "n", "nstages"),
    [
        (ScheduleGPipe, 3, 3),
        (Schedule1F1B, 2, 2),
        (ScheduleInterleaved1F1B, 2, 4),
        (ScheduleLoopedBFS, 2, 4),
        (ScheduleLoopedBFS, 3, 6),
        (ScheduleInterleavedZeroBubble, 2, 4),
        (ScheduleZBVZeroBubble, 2, 4),
        (ScheduleZBVZeroBubble, 4, 8),
        (ScheduleDualPipeV, 2, 4),
    ],
)
def test_gradients_of_pipelines_are_those_of_the_whole(kind, n, nstages):
    run_group(n, pipeline, kind, nstages)


# ---- meshes of two dimensions ----------------------------------------------------------------------------------------


def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return optimizer


def whole_batches():
    return [tuple(map(torch.cat, zip(batch(2 * step), batch(2 * step + 1), strict=True))) for step in range(3)]


def sharded_and_parallel(rank, place):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model, alone = nn.Sequential(*layers_of(2)), nn.Sequential(*layers_of(2))
    plan = {f"{k}.{j}": kind() for k in range(2) for j, kind in ((0, ColwiseParallel), (2, RowwiseParallel))}
    parallelize_module(model, mesh["tensor"], plan)
    for layer in model:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = train(model, [batch(2 * step + rank // 2) for step in range(3)])
    train(alone, whole_batches())
    close(model.parameters(), alone.parameters())

    # Saved by shares of four ranks, loaded as shares of another kind, and trained on.
    saved = get_state_dict(model, optimizer)
    dcp.save({"model": saved[0], "optimizer": saved[1]}, checkpoint_id=place)
    other = nn.Sequential(*layers_of(2))
    fully_shard(other, mesh=init_device_mesh("cpu", (4,)))
    second = train(other, [batch(9)])
    found = dict(zip(("model", "optimizer"), get_state_dict(other, second), strict=True))
    dcp.load(found, checkpoint_id=place)
    set_state_dict(other, second, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    close(other.parameters(), [p.detach() for p in alone.parameters()])


def test_sharding_and_tensor_parallel_together_and_a_checkpoint_for_other_shares():
    with tempfile.TemporaryDirectory() as place:
        run_group(4, sharded_and_parallel, place)


# ---- functional collectives ------------------------------------------------------------------------------------------


class Gathering(nn.Module):
    """A collective of torch's own in a graph."""

    def forward(self, x):
        return fc.all_gather_tensor(fc.all_reduce(x * 2, "sum", dist.group.WORLD), 0, dist.group.WORLD) + 1


@on_group(1, 2)
def test_functional_collectives_in_coalesced_form_and_exported(rank):
    n = dist.get_world_size()
    group = dist.group.WORLD
    xs = [torch.full((2 * k, 3), float(rank + k)) for k in (1, 2)]
    for whole, k in zip(fc.all_gather_into_tensor_coalesced(xs, group), (1, 2), strict=True):
        assert torch.equal(whole + 0, torch.cat([torch.full((2 * k, 3), float(r + k)) for r in range(n)]))
    wide = [torch.arange(float(n * k)) + rank for k in (1, 2)]
    for share, k in zip(fc.reduce_scatter_tensor_coalesced(wide, "sum", [0, 0], group), (1, 2), strict=True):
        assert torch.equal(share + 0, n * torch.arange(float(n * k))[k * rank : k * (rank + 1)] + sum(range(n)))
    moved = fc.permute_tensor(torch.full((3,), float(rank)), [(r + 1) % n for r in range(n)], group)
    assert torch.equal(moved + 0, torch.full((3,), float((rank - 1) % n)))
    x = torch.arange(4.0) + rank
    exported = torch.export.export(Gathering(), (x,))
    assert any("_c10d_functional.all_reduce" in str(node.target) for node in exported.graph.nodes)
    assert torch.equal(exported.module()(x), Gathering()(x))


@on_group(2, 3)
def test_functional_messages_one_by_one_together_and_compiled(rank):
    """Around the ring, one by one and together, and in a graph."""
    n, name, ops = dist.get_world_size(), dist.group.WORLD.group_name, torch.ops._c10d_functional
    after, before = (rank + 1) % n, (rank - 1) % n
    own, other = torch.full((3,), float(rank)), torch.full((3,), float(before))
    sent = ops.isend(own, after, 7, name)
    found = ops.wait_tensor(ops.irecv(torch.empty(3), before, 7, name))
    ops.wait_tensor(sent)
    assert torch.equal(found, other)

    def exchange(x):
        y = torch.empty_like(x)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]):
            work.wait()
        return y + 1

    both = ops.batch_p2p_ops(["isend", "irecv"], [after, before], [0, 0], [own, torch.empty(3)], name)
    assert torch.equal([ops.wait_tensor(x) for x in both][1], other)
    with torch._dynamo.config.patch(enable_p2p_compilation=True):
        compiled = torch.compile(exchange, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            assert torch.equal(compiled(own), other + 1)


def messages_of_gloo(rank):
    """Torch's own function serves the groups of other backends in a process that has a group of shmring."""
    gloo = dist.new_group(backend="gloo")
    ops, other = torch.ops._c10d_functional, 1 - rank
    x, y = torch.full((3,), float(rank)), torch.empty(3)
    found = ops.batch_p2p_ops(["isend", "irecv"], [other, other], [0, 0], [x, y], gloo.group_name)
    return [ops.wait_tensor(one) for one in found][1].tolist()


def test_functional_messages_of_other_backends_are_left_to_torch():
    assert run_group(2, messages_of_gloo) == [[1.0] * 3, [0.0] * 3]


@on_group(2, 3)
def test_the_operator_from_one_sharded_dimension_to_another(rank):
    """The operator that DTensor calls to shard another dimension, where the mesh's device is not named cpu."""
    n, whole = dist.get_world_size(), torch.arange(36.0).view(6, 6)
    found = torch.ops._dtensor.shard_dim_alltoall(whole.chunk(n)[rank].clone(), 0, 1, dist.group.WORLD.group_name)
    assert torch.equal(found, whole.chunk(n, 1)[rank])


# ---- reductions to one rank and to shares, by every operation --------------------------------------------------------

OPS = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


@on_group(1, 2, 3)
def test_every_operation_to_one_rank_to_shares_and_coalesced(rank):
    n = dist.get_world_size()
    inputs = [torch.arange(n * 5) % 6 + r + 1 for r in range(n)]
    for op, fn in OPS.items():
        want = copy.copy(inputs[0])
        for other in inputs[1:]:
            want = fn(want, other)
        found = inputs[rank].clone()
        dist.reduce(found, n - 1, op=op)
        assert torch.equal(found, want if rank == n - 1 else inputs[rank]), op
        share = torch.empty(5, dtype=torch.int64)
        dist.reduce_scatter_tensor(share, inputs[rank], op=op)
        assert torch.equal(share, want[5 * rank : 5 * rank + 5]), op
        several = [inputs[rank].clone(), inputs[rank][:3].clone()]
        dist.all_reduce_coalesced(several, op=op)
        assert torch.equal(several[0], want), op
        assert torch.equal(several[1], want[:3]), op
    total = sum(inputs).double()
    for op, want in ((dist.ReduceOp.AVG, total / n), (dist._make_nccl_premul_sum(0.5), total / 2)):
        found = inputs[rank].double()
        dist.reduce(found, 0, op=op)
        assert torch.equal(found, want if rank == 0 else inputs[rank].double())
        several = [inputs[rank].double(), inputs[rank][:1].double()]
        dist.all_reduce_coalesced(several, op=op)
        assert torch.equal(several[0], want)
