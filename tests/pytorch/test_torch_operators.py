"""Torch's operators (`c10d::`): what modes, subclasses of tensors, tracers and compilers see of calls on a group.

Beside gloo, on the same program. And the methods of a group in all forms of arguments that torch gives them.
"""

from datetime import timedelta

import pytest
import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn as nn
from support.torch_groups import on_group
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import shmring.torch


class Log(TorchDispatchMode):
    """Notes the operators of torch.distributed, and makes them."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.seen.append(function.name().removeprefix("c10d::"))
        return function(*args, **(kwargs or {}))


class Wrapper(torch.Tensor):
    """As quantized weights: another tensor within, and no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def within(x):
            if isinstance(x, (list, tuple)):
                return [within(each) for each in x]
            return x.inner if isinstance(x, Wrapper) else x

        return function(*within(args), **(kwargs or {}))


def own(rank, n, count=4):
    return torch.arange(float(count)) + 10 * rank


def calls(n):
    """Every call of torch.distributed: the operators it makes, and a function of a group, a rank and a way to give a
    tensor, which returns what the call has written."""

    def all_reduce(group, rank, x):
        dist.all_reduce(x, group=group)
        return [x]

    def in_background(group, rank, x):
        work = dist.all_reduce(x, dist.ReduceOp.MAX, group=group, async_op=True)
        work.wait()
        assert work.is_completed()
        return [x, *work.get_future().wait()]

    def coalesced(group, rank, x):
        dist.all_reduce_coalesced([x], group=group)
        return [x]

    def reduce(group, rank, x):
        dist.reduce(x, 0, group=group)
        return [x] if rank == 0 else []

    def broadcast(group, rank, x):
        dist.broadcast(x, n - 1, group=group)
        return [x]

    def all_gather(group, rank, x):
        outs = [torch.zeros(4) for _ in range(n)]
        dist.all_gather(outs, x, group=group)
        return outs

    def all_gather_single(group, rank, x):
        out = torch.zeros(4 * n)
        dist.all_gather_single(out, x, group=group)
        return [out]

    def gather(group, rank, x):
        outs = [torch.zeros(4) for _ in range(n)] if rank == 0 else None
        dist.gather(x, outs, 0, group=group)
        return outs or []

    def scatter(group, rank, x):
        out = torch.zeros(4)
        dist.scatter(out, [own(r, n) for r in range(n)] if rank == 0 else None, 0, group=group)
        return [out]

    def reduce_scatter_single(group, rank, x):
        out = torch.zeros(4 // n)
        dist.reduce_scatter_single(out, x, group=group)
        return [out]

    def all_to_all_single(group, rank, x):
        out = torch.zeros(4)
        dist.all_to_all_single(out, x, group=group)
        return [out]

    def messages(group, rank, x):
        out = torch.zeros(4)
        work = dist.irecv(out, (rank - 1) % n, group=group)
        dist.isend(x, (rank + 1) % n, group=group).wait()
        work.wait()
        return [out]

    def barrier(group, rank, x):
        dist.barrier(group=group)
        return []

    return {
        all_reduce: ["allreduce_"],
        in_background: ["allreduce_"],
        coalesced: ["allreduce_coalesced_"],
        reduce: ["reduce_"],
        broadcast: ["broadcast_"],
        all_gather: ["allgather_"],
        all_gather_single: ["_allgather_base_"],
        gather: ["gather_"],
        scatter: ["scatter_"],
        reduce_scatter_single: ["_reduce_scatter_base_"],
        all_to_all_single: ["alltoall_base_"],
        messages: ["recv_", "send"],
        barrier: ["barrier"],
    }


@on_group(2)
def test_a_dispatch_mode_sees_each_call_and_changes_none(rank):
    gloo = dist.new_group(backend="gloo")
    for call, operators in calls(2).items():
        found = []
        for group in (None, gloo):
            with Log() as log:
                found.append(call(group, rank, own(rank, 2)))
            assert log.seen == operators, call
        found.append(call(None, rank, own(rank, 2)))
        for ours, theirs, plain in zip(*found, strict=True):
            assert torch.equal(ours, theirs), call
            assert torch.equal(ours, plain), call


@on_group(2)
def test_subclasses_of_tensors_are_taken(rank):
    for call in calls(2):
        plain = call(None, rank, own(rank, 2))
        for given in (fc.all_reduce(own(rank, 2) / 2, "max", dist.group.WORLD), Wrapper(own(rank, 2))):
            if not isinstance(given, Wrapper):  # its values are those of all ranks
                plain = call(None, rank, own(1, 2) / 2)
            found = call(None, rank, given)
            for one, wanted in zip(found, plain, strict=True):
                one = one.inner if isinstance(one, Wrapper) else one
                assert torch.equal(one + 0, wanted), (call, type(given))
            plain = call(None, rank, own(rank, 2))
    late = [fc.all_reduce(own(rank, 2), "sum", dist.group.WORLD) for _ in range(2)]
    out = torch.zeros(4)
    dist.reduce_scatter(out, late)  # lists of lists, in which torch looks for no subclass
    assert torch.equal(out, 2 * (own(0, 2) + own(1, 2)))
    found = [None, None]
    dist.all_gather_object(found, fc.all_reduce(own(rank, 2), "sum", dist.group.WORLD))
    assert all(torch.equal(x + 0, own(0, 2) + own(1, 2)) for x in found)


@on_group(2)
def test_outputs_of_tensor_parallel_layers_are_taken(rank):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)), torch.ones(2, 8)
    wanted = net(x).detach()
    mesh = dist.init_device_mesh("cpu", (2,))
    net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    outs = [torch.zeros(2, 8) for _ in range(2)]
    with torch.no_grad():
        dist.all_gather(outs, net(x))
    torch.testing.assert_close(outs[0], wanted)
    assert torch.equal(outs[0], outs[1])


def traced(x):
    y = x * 2
    dist.all_reduce(y)
    outs = torch.zeros(2 * y.numel())
    dist.all_gather_single(outs, y)
    return outs


@on_group(2)
def test_tracers_keep_the_calls(rank):
    x = own(rank, 2)
    for fake in ("real", "fake", "symbolic"):
        graph = make_fx(traced, tracing_mode=fake)(x)
        operators = [str(node.target) for node in graph.graph.nodes if "c10d" in str(node.target)]
        assert operators == ["c10d.allreduce_.default", "c10d._allgather_base_.default"], fake
    graph = make_fx(traced)(x)
    assert torch.equal(graph(x + 1), traced(x + 1))  # which has the group, and makes the calls
    rounds = dist.group.WORLD.comm._engine.rounds
    with FakeTensorMode() as mode:
        y = mode.from_tensor(x)
        dist.all_reduce(y)
        dist.all_gather([torch.empty_like(y) for _ in range(2)], y)
    assert dist.group.WORLD.comm._engine.rounds == rounds


def counted(group, rank):
    """What CommDebugMode counts of calls, of a step of FSDP 2 and of one of DistributedDataParallel."""
    n, ranks = 2, dist.get_process_group_ranks(group)
    with CommDebugMode() as of_calls:
        for call in calls(n):
            call(group, rank, own(rank, n))
    mesh = dist.DeviceMesh.from_group(group, "cpu") if ranks else None
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for module in (*net, net):
        fully_shard(module, mesh=mesh)
    with CommDebugMode() as of_shards:
        net(torch.ones(2, 8)).sum().backward()
    model = DistributedDataParallel(nn.Linear(8, 8), process_group=group)
    with CommDebugMode() as of_ddp:
        model(torch.ones(2, 8)).sum().backward()
    modes = (of_calls, of_shards, of_ddp)
    return [{str(name): count for name, count in mode.get_comm_counts().items()} for mode in modes]


@on_group(2)
def test_the_mode_that_counts_communication_counts_as_of_gloo(rank):
    ours, gloo = counted(dist.group.WORLD, rank), counted(dist.new_group(backend="gloo"), rank)
    assert ours == gloo
    assert all(sum(counts.values()) for counts in ours[:2])


# ---- compilers -------------------------------------------------------------------------------------------------------


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return checkpoint(self.net, x, use_reentrant=False)


class Summing(nn.Module):
    """Collectives in the forward pass: in place, functional, and with gradients."""

    def __init__(self, group):
        super().__init__()
        self.net, self.group = net(), group

    def forward(self, x):
        y = x * 2
        dist.all_reduce(y, group=self.group)
        z = fc.all_reduce(self.net(x), "sum", self.group)
        return z + y.sum() + dist.nn.functional.all_reduce(self.net(x), group=self.group)


def around_ddp(group):
    return torch.compile(DistributedDataParallel(net(), process_group=group), backend="aot_eager")


def of_ddp(group):
    return DistributedDataParallel(torch.compile(net(), backend="aot_eager"), process_group=group)


def method_of_ddp(group):
    model = DistributedDataParallel(net(), process_group=group)
    model.compile(backend="aot_eager")
    return model


def checkpointed(group):
    return torch.compile(DistributedDataParallel(Checkpointed(), process_group=group), backend="aot_eager")


def first_fsdp(group):
    return torch.compile(FullyShardedDataParallel(net(), group, device_id=torch.device("cpu")), backend="aot_eager")


def second_fsdp(group):
    model = net()
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=dist.DeviceMesh.from_group(group, "cpu"))
    return torch.compile(model, backend="aot_eager")


def tensor_parallel(group):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return torch.compile(parallelize_module(net(), dist.DeviceMesh.from_group(group, "cpu"), plan), backend="aot_eager")


def summing(group):
    return torch.compile(Summing(group), backend="aot_eager")


def steps(make, group, compiled_step=False):
    """The losses of four steps of training, and how often the compiler broke off."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = make(group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = torch.compile(step, backend="aot_eager") if compiled_step else step
    losses = [float(step(torch.ones(4, 8) + dist.get_rank())) for _ in range(4)]
    return losses, sum(torch._dynamo.utils.counters["graph_break"].values())


@pytest.mark.parametrize(
    "make",
    [around_ddp, of_ddp, method_of_ddp, checkpointed, first_fsdp, second_fsdp, tensor_parallel, summing],
    ids=lambda make: make.__name__,
)
@on_group(2)
def test_compiled_training_has_the_losses_and_the_graph_breaks_of_gloo(rank, make):
    gloo = dist.new_group(backend="gloo")
    for compiled_step in (False, True) if make is around_ddp else (False,):
        ours, theirs = (steps(make, group, compiled_step) for group in (dist.group.WORLD, gloo))
        assert ours == theirs


# ---- the group's own methods -----------------------------------------------------------------------------------------

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def forms(group, rank, n):
    """Calls of the methods in the forms that torch documents, each with what it gives."""
    x, xs, long = own(rank, n), [own(r, n) for r in range(n)], timedelta(seconds=60)
    outs, out = [torch.zeros(4) for _ in range(n)], torch.zeros(4)
    most, total = xs[-1], sum(xs)
    is_first = rank == 0
    yield lambda: group.allreduce(x), [x], [total]
    yield lambda: group.allreduce(x, op=MAX), [x], [total]
    yield lambda: group.allreduce(tensor=x, op=SUM, timeout=long), [x], [n * total]
    yield lambda: group.allreduce(tensors=[x], opts=dist.AllreduceOptions()), [x], [n * n * total]
    x = own(rank, n)
    yield lambda: group.allreduce([x], MAX), [x], [most]
    yield lambda: group.allreduce([x], op=SUM, timeout=long), [x], [n * most]
    yield lambda: group.broadcast(x, root=n - 1), [x], [n * most]
    x = own(rank, n)
    yield lambda: group.broadcast(x, 0, long), [x], [xs[0]]
    yield lambda: group.reduce(x, root=0, op=SUM), [x] if is_first else [], [n * xs[0]] if is_first else []
    x = own(rank, n)
    yield lambda: group.allgather(outs, x), outs, xs
    yield lambda: group.allgather([outs], [x + 1]), outs, [y + 1 for y in xs]
    yield lambda: group.gather(outs if is_first else [], x, root=0), outs if is_first else [], xs if is_first else []
    yield lambda: group.scatter(out, xs if is_first else [], root=0), [out], [xs[rank]]
    yield lambda: group.reduce_scatter(out, [x] * n, op=MAX), [out], [most]
    yield lambda: group.alltoall(outs, [x] * n), outs, xs
    yield lambda: group.alltoall(outs, [x + 2] * n, opts=dist.AllToAllOptions()), outs, [y + 2 for y in xs]
    yield lambda: group.barrier(), [], []
    yield lambda: group.barrier(timeout=long), [], []
    yield lambda: group.barrier(dist.BarrierOptions()), [], []


@on_group(1, 2)
def test_methods_take_all_forms_of_arguments_that_those_of_gloo_take(rank):
    n = dist.get_world_size()
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        for number, (call, found, wanted) in enumerate(forms(group, rank, n)):
            work = call()
            assert work.wait(), number
            assert work.is_completed() or group is not dist.group.WORLD, number  # gloo's are not always
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other), number
    with pytest.raises(TypeError, match="incompatible function arguments"):
        dist.group.WORLD.allreduce("no tensor")
    assert isinstance(dist.group.WORLD, shmring.torch.ProcessGroup)
