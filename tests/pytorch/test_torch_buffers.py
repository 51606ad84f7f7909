"""Buffers that the group allocates: shared memory cut in pieces, and FSDP2 that needs no staging on them."""

import gc
import math
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from support.interrupts import lines_executed
from support.torch_groups import on_group, run_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import shmring.torch.allocator
from shmring.torch.allocator import ALIGNMENT, BETWEEN, FIRST_REQUESTS, SMALL_NBYTES, Pool

MANY = 5000  # elements: past the eager messages, of whatever type
DIRECT = {"SHMRING_DIRECT": "1"}  # no trials of the staged path


def asked(count, dtype=torch.float32):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    return backend.allocate_tensor(count, dtype=dtype, device=torch.device("cpu"))


def nmapped():
    return dist.group.WORLD.comm.stats()["zero_copy_calls"]


# ---- pieces of one array ---------------------------------------------------------------------------------------------


def test_a_pool_gives_what_is_free_and_takes_back_what_was_dropped():
    memory = np.zeros(8 * ALIGNMENT, np.uint8)
    pool = Pool(memory)
    pieces = [pool.cut(nbytes) for nbytes in (ALIGNMENT, 3 * ALIGNMENT - 5, 1, ALIGNMENT)]
    assert [piece.ctypes.data - memory.ctypes.data for piece in pieces] == [0, ALIGNMENT, 4 * ALIGNMENT, 5 * ALIGNMENT]
    assert [piece.nbytes for piece in pieces] == [ALIGNMENT, 3 * ALIGNMENT - 5, 1, ALIGNMENT]
    assert pool.cut(3 * ALIGNMENT) is None
    tensor = torch.frombuffer(pieces.pop(1), dtype=torch.uint8)[7:9]
    assert pool.cut(3 * ALIGNMENT) is None  # the tensor keeps it
    del tensor
    best = pool.cut(2 * ALIGNMENT)  # the smaller gap that suffices, behind the others
    assert best.ctypes.data - memory.ctypes.data == 6 * ALIGNMENT
    del pieces, best
    assert pool.cut(memory.nbytes) is not None  # the gaps have grown together


def test_an_interrupt_as_a_piece_is_dropped_is_not_lost():
    pieces = [Pool(np.zeros(ALIGNMENT, np.uint8)).cut(ALIGNMENT)]
    assert lines_executed(pieces.clear) == 0


# ---- the group's -----------------------------------------------------------------------------------------------------


@on_group(1, 2, 3)
def test_collectives_on_buffers_of_the_group_need_no_staging(rank):
    n = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32):
        whole = asked(n * MANY, dtype)
        assert (whole.dtype, whole.shape, whole.requires_grad) == (dtype, (n * MANY,), False)
        own = whole[rank * MANY : (rank + 1) * MANY]
        own.copy_(torch.arange(MANY) % 7 + rank)
        before = nmapped()
        dist.all_gather_into_tensor(whole, own)
        assert nmapped() == before + (n > 1)
        for r in range(n):
            assert torch.equal(whole[r * MANY : (r + 1) * MANY], (torch.arange(MANY) % 7 + r).to(dtype))
        dist.reduce_scatter_tensor(out := torch.empty(MANY, dtype=dtype), whole)
        assert torch.equal(out, n * own)
        dist.all_reduce(whole)
        assert torch.equal(whole[:MANY], (n * (torch.arange(MANY) % 7)).to(dtype))
        work = dist.all_gather_into_tensor(whole, own, async_op=True)
        del whole  # the call keeps it
        gc.collect()
        work.wait()
        assert nmapped() == before + 4 * (n > 1)


def come_and_go(rank):
    n = dist.get_world_size()
    kept, places, direct = [], set(), []
    for step in range(FIRST_REQUESTS // 2 + 3):
        x = asked(n * MANY)
        x.fill_(rank + step)
        if (step + rank) % 4 == 0 and len(kept) < 3:  # each rank keeps others: those of no two ranks lie alike
            kept.append((x, rank + step))
        places.add(x.data_ptr())
        before = nmapped()
        dist.reduce_scatter_tensor(out := asked(MANY), x)
        assert out[-1] == sum(r + step for r in range(n))
        direct.append(nmapped() - before)
    assert set(direct) == {1}
    for x, value in kept:
        assert torch.equal(x, torch.full_like(x, value))
    return len(places)


def test_buffers_are_used_again_and_each_rank_may_keep_what_it_likes():
    for places in run_group(2, come_and_go, env=DIRECT):
        assert places <= 3 + 3


def outlive(rank):
    x = asked(MANY).fill_(rank)
    y = asked(MANY)
    dist.destroy_process_group()
    gc.collect()
    y.fill_(7)
    assert torch.equal(x, torch.full((MANY,), float(rank)))
    return x.sum().item()


def test_buffers_outlive_their_group():
    assert run_group(2, outlive) == [0.0, MANY]


@on_group(2)
def test_where_one_rank_has_no_room_all_get_ordinary_memory(rank):
    with mock.patch.object(shmring.torch.allocator, "free_nbytes", return_value=10_000 if rank else 1 << 30):
        x = asked(MANY).fill_(rank + 1)
    before = nmapped()
    dist.all_reduce(x)
    assert x[0] == 3
    assert nmapped() == before
    with mock.patch.object(shmring.torch.allocator, "free_nbytes", return_value=-1):  # no limit is known
        x = asked(MANY).fill_(rank + 1)
    dist.all_reduce(x)
    assert x[0] == 3
    assert nmapped() == before + 1
    assert asked(0).shape == (0,)


@on_group(2)
def test_ranks_whose_shards_differ_in_size_make_their_pools_in_the_same_calls(rank):
    """Shards around the size from which a pool serves them: larger on rank 0 alone."""
    small = SMALL_NBYTES // 4 - 1
    for step in range(FIRST_REQUESTS + BETWEEN + 3):
        x = asked(small + 1 - rank).fill_(rank + step)
        total = torch.tensor([float(step)])
        dist.all_reduce(total)
        assert total == 2 * step
        assert x[-1] == rank + step


@on_group(2)
def test_a_rank_that_asks_alone_is_an_error_on_all(rank):
    with pytest.raises(RuntimeError, match="disagree"):
        asked(MANY) if rank == 0 else dist.all_reduce(torch.ones(MANY))


# ---- FSDP2 -----------------------------------------------------------------------------------------------------------


def sharded_training(mesh, zero_copy, policy):
    """The losses and the parameters after some steps."""
    n = dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 64)) for width in (64, 128, 64)]
    model = nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
        layer.set_allocate_memory_from_process_group_for_comm(zero_copy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step * n + dist.get_rank()))
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(p.full_tensor().detach() for p in model.parameters())]


def train_sharded(rank, shape):
    names = ("shard",) if len(shape) == 1 else ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    gloo = init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override=dict.fromkeys(names, "gloo"))
    comm = mesh.get_group("shard").comm
    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)):
        before = comm.stats()["zero_copy_calls"]
        staged = sharded_training(mesh, False, policy)
        assert comm.stats()["zero_copy_calls"] == before
        found = sharded_training(mesh, True, policy)
        # In each step each of three layers is gathered for the forward and for the backward pass, but for the last one,
        # which is still there; and its gradients are reduced.
        assert comm.stats()["zero_copy_calls"] - before >= 3 * (3 + 2 + 3)
        wanted = sharded_training(gloo, False, policy)
        for a, b, c in zip(found, staged, wanted, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2)])
def test_fully_sharded_training_on_buffers_of_the_group_has_the_bits_of_the_staged_one_and_needs_no_staging(shape):
    run_group(math.prod(shape), train_sharded, shape, env=DIRECT)
