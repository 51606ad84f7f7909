"""Gradients and parameters in shared memory: the same bits as without, and collectives on them need no staging."""

import resource
import warnings

import pytest
import torch
import torch.distributed as dist
from support.torch_groups import on_group, run_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import shmring.torch

STEPS = 6


def wide_model():
    torch.manual_seed(0)
    first, middle, last = torch.nn.Linear(150, 200), torch.nn.Linear(200, 200), torch.nn.Linear(200, 9)
    return torch.nn.Sequential(first, torch.nn.ReLU(), middle, torch.nn.ReLU(), last)


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 150, generator=generator), torch.randn(8, 9, generator=generator)


def train(model, rank, steps=range(STEPS)):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in steps:
        x, y = batch(step, rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()]


def same(found, wanted):
    assert found[0] == wanted[0]
    assert all(torch.equal(a, b) for a, b in zip(found[1], wanted[1], strict=True))


def zero_copy_calls():
    return dist.group.WORLD.comm.stats()["zero_copy_calls"]


def gradients(rank, options):
    wanted = train(DistributedDataParallel(wide_model(), **options), rank)
    assert zero_copy_calls() == 0
    model = DistributedDataParallel(wide_model(), **options)
    with shmring.torch.share_gradients(model) as shared:
        assert shared.nbytes == 0
        found = train(model, rank)
        comm = dist.group.WORLD.comm
        assert 200_000 < shared.nbytes < 300_000
        assert comm.stats()["shared_nbytes"] == shared.nbytes
        calls = zero_copy_calls()
        assert calls >= STEPS - 3
    if dist.get_world_size() == 2:
        same(found, wanted)
    else:
        torch.testing.assert_close(found[1], wanted[1])
    assert shared.closed
    assert comm.stats()["shared_nbytes"] == 0
    train(model, rank, range(2))  # goes on with staging
    assert zero_copy_calls() == calls
    del model, shared


OPTIONS = [
    {},
    {"gradient_as_bucket_view": True},
    {"bucket_cap_mb": 0.13},
    {"find_unused_parameters": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_training_with_shared_gradients_has_the_bits_of_training_without(options):
    run_group(2, gradients, options)


def test_training_with_shared_gradients_on_three_ranks():
    run_group(3, gradients, {"gradient_as_bucket_view": True})


@on_group(2)
def test_other_hooks_work_on_shared_buckets(rank):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    for hook, zero_copy in ((allreduce_hook, True), (shmring.torch.bf16_hook, False)):
        plain = DistributedDataParallel(wide_model())
        plain.register_comm_hook(None, hook)
        wanted = train(plain, rank)
        model = DistributedDataParallel(wide_model())
        calls = zero_copy_calls()
        with shmring.torch.share_gradients(model, hook) as shared:
            same(train(model, rank), wanted)
            assert shared.nbytes
        assert (zero_copy_calls() > calls) == zero_copy
        with pytest.raises(RuntimeError, match="register_comm_hook"):
            shmring.torch.share_gradients(model)


@on_group(2)
def test_sparse_gradients_are_averaged_as_before(rank):
    embedding = torch.nn.Embedding(5000, 3, sparse=True).double()
    model = DistributedDataParallel(embedding)
    with shmring.torch.share_gradients(model):
        for _ in range(3):
            model.zero_grad()
            model(torch.tensor([1, 1, 7 + rank])).sum().backward()
            gradient = model.module.weight.grad.to_dense()
            assert gradient[1, 0] == 2
            assert gradient[8, 0] == 0.5


@on_group(2)
def test_without_room_all_ranks_warn_and_training_goes_on(rank):
    wanted = train(DistributedDataParallel(wide_model()), rank)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    model = DistributedDataParallel(wide_model())
    with shmring.torch.share_gradients(model) as shared, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(train(model, rank), wanted)
        assert shared.closed
    assert [str(w.message)[:28] for w in caught if w.category is RuntimeWarning] == ["gradients stay in private me"]
    assert zero_copy_calls() == 0


@on_group(2, 3)
def test_every_way_of_calling_takes_the_memory_of_shared_parameters(rank):
    import shmring.torch.ops  # which registers the operators

    model = wide_model()
    model.add_module("tied", torch.nn.Linear(200, 200))
    model.tied.weight = model[2].weight
    comm, n = dist.group.WORLD.comm, dist.get_world_size()
    before = [p.detach().clone() for p in model.parameters()]
    addresses = [p.data_ptr() for p in model.parameters()]
    with shmring.torch.share_parameters(model) as shared:
        assert addresses == [p.data_ptr() for p in model.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
        assert 250_000 < shared.nbytes <= 4 * 150 * 200 + 4 * 200 * 200
        weight = model[0].weight.detach()
        weight.fill_(rank + 1)
        total = n * (n + 1) / 2
        shmring.torch.set_communicator(comm)
        calls = [
            lambda: shmring.torch.all_reduce_(weight),
            lambda: shmring.torch.all_reduce_(weight.view(-1)[10:-10]),
            comm.plan("all_reduce", weight),
            lambda: torch.ops.shmring.all_reduce_(weight, "sum", ""),
            lambda: torch.ops.shmring.all_reduce(weight, "sum", ""),
            lambda: dist.all_reduce(weight),
            lambda: dist.all_reduce(weight, async_op=True).wait(),
            lambda: comm.all_gather(weight),
        ]
        counts = []
        for call in calls:
            weight.fill_(rank + 1)
            start = zero_copy_calls()
            result = call()
            counts.append(zero_copy_calls() - start)
            if result is None or (isinstance(result, torch.Tensor) and result.shape == weight.shape):
                found = weight if result is None or result.data_ptr() == weight.data_ptr() else result
                assert (found == total).all()
        # The functional operator reduces a copy; all others take the memory of the parameters.
        assert counts == [1, 1, 1, 1, 0, 1, 1, 1]
        parallel = DistributedDataParallel(model[:5])
        wanted = train(parallel, rank, range(2))
    assert all(torch.equal(a, b) for a, b in zip(parallel.parameters(), wanted[1], strict=True))
    shmring.torch.set_communicator(comm, "named")
    for which in ("named", comm, dist.group.WORLD):
        with shmring.torch.share_parameters(wide_model(), comm=which) as shared:
            assert shared.nbytes


@on_group(2)
def test_messages_that_a_thread_receives_while_their_tensor_is_shared_are_not_lost(rank):
    comm, messages = dist.group.WORLD.comm, dist.new_group([0, 1])
    x = torch.zeros(1 << 19, dtype=torch.float64)  # more than a pair queue holds: the thread of the group receives
    for step in range(1, 41):
        if rank == 0:
            work = dist.isend(torch.full_like(x, step), 1, group=messages)
        else:
            work = dist.irecv(x, 0, group=messages)
        comm.share(x).close()
        work.wait()
        assert rank == 0 or (x == step).all()


@on_group(2)
def test_what_cannot_be_shared_is_a_type_error(rank):
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        shmring.torch.share_gradients(wide_model())
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(TypeError, match="backend must be shmring"):
        shmring.torch.share_gradients(DistributedDataParallel(wide_model(), process_group=gloo))
    sharded = fully_shard(wide_model(), mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(TypeError, match="DTensor"):
        shmring.torch.share_parameters(sharded)
    with pytest.raises(TypeError, match="on meta"):
        shmring.torch.share_parameters(torch.nn.Linear(2, 2, device="meta"))


@on_group(2, labels=["a", "b"])
def test_on_several_machines_gradients_are_averaged_as_before(rank):
    model = DistributedDataParallel(wide_model())
    with pytest.raises(TypeError, match="several machines"):
        shmring.torch.share_parameters(model)
    with shmring.torch.share_gradients(model) as shared:
        found = train(model, rank)
        assert shared.nbytes == 0
    same(train(DistributedDataParallel(wide_model()), rank), found)


@on_group(2)
def test_a_model_may_be_deleted_first(rank):
    """The model is deleted while its gradients are shared."""
    comm = dist.group.WORLD.comm
    for _ in range(3):
        model = DistributedDataParallel(wide_model(), gradient_as_bucket_view=True)
        shared = shmring.torch.share_gradients(model)
        train(model, rank, range(4))
        assert shared.nbytes
        del model
        shared.close()
        assert comm.stats()["shared_nbytes"] == 0
    x = torch.ones(100_000)
    dist.all_reduce(x)
    assert (x == 2).all()
