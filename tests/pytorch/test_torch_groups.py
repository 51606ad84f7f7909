"""Groups: how they are named and ended, and what failures of training raise; see also test_torch_checks."""

import os
import time
import traceback

import pytest
import torch
import torch.distributed as dist
from support.programs import run_python
from support.torch_groups import on_group, run_group, start_group
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import shmring.torch


def default_group(rank):
    assert dist.is_initialized()
    assert dist.get_backend() in ("shmring", "cpu:shmring")
    assert dist.get_rank() == rank
    group = dist.group.WORLD
    assert isinstance(group, shmring.torch.ProcessGroup)
    assert group.rank() == group.comm.rank == rank
    assert group.name() == group.getBackendName() == "shmring"
    assert group.group_name == dist.distributed_c10d._get_process_group_name(group)
    assert group._get_backend(torch.device("cpu")) is group
    with pytest.raises(RuntimeError, match="cuda"):
        group._get_backend(torch.device("cuda"))
    assert group._device_types == [torch.device("cpu")]
    dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    assert group.comm.closed


@pytest.mark.parametrize("backend", ["shmring", "cpu:shmring"])
def test_the_default_group_is_of_shmring_and_has_its_name(backend):
    run_group(2, default_group, backend=backend)


@on_group(2, backend="cpu:shmring,cuda:fake")
def test_tensors_of_another_device_go_to_the_backend_that_is_named_for_it(rank):
    group, calls = dist.group.WORLD, dist.group.WORLD.comm.stats()["calls"]
    assert isinstance(group, shmring.torch.ProcessGroup)
    assert {device.type for device in group._device_types} == {"cpu", "cuda"}
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.ones(3, device="cuda")
        dist.all_reduce(x)
        dist.all_gather([torch.empty_like(x) for _ in range(2)], x)
    assert group.comm.stats()["calls"] == calls
    assert group._get_backend(torch.device("cuda")).name() == "fake"
    assert group._get_backend(torch.device("cpu")) is group
    with pytest.raises(RuntimeError, match="xpu"):
        group._get_backend(torch.device("xpu"))
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x[0] == 2
    some = dist.new_group([0, 1], backend="cpu:shmring,cuda:fake")
    assert some._get_backend(torch.device("cuda")).name() == "fake"


@on_group(2)
def test_an_error_is_shown_once_without_the_lines_of_the_engine(rank):
    comm = dist.group.WORLD.comm.dup()
    calls = (dist.all_reduce, lambda x: shmring.torch.all_reduce_(x, comm=comm))
    for call in calls:
        with pytest.raises(shmring.MismatchError) as caught:
            call(torch.ones(3 + rank))
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("MismatchError") == 1, text
        assert "engine.pyx" not in text, text
    with pytest.raises(shmring.BrokenError) as caught:
        dist.broadcast(torch.ones(3), 0)
    assert "engine.pyx" not in "".join(traceback.format_exception(caught.value))


@on_group(3)
def test_abort_fails_the_calls_of_the_others(rank):
    if rank == 0:
        time.sleep(0.2)
        dist.distributed_c10d._abort_process_group()
    else:
        with pytest.raises(dist.DistBackendError, match="aborted the group"):
            dist.all_reduce(torch.ones(1))


def killed(rank):
    x = torch.ones(1000)
    if rank == 1:
        dist.all_reduce(x)
        os.kill(os.getpid(), 9)
    with pytest.raises(dist.DistBackendError, match=r"rank 1 .*died") as caught:
        for _ in range(100_000):
            dist.all_reduce(x)
    assert isinstance(caught.value, shmring.PeerLostError)
    assert caught.value.rank == 1
    work = dist.all_reduce(x, async_op=True)
    with pytest.raises(shmring.PeerLostError):
        work.wait()


def test_a_dead_rank_is_an_exception_on_the_others():
    outcomes = start_group(3, killed).outcomes()
    assert outcomes[1].signal == 9
    assert outcomes[0].ok, outcomes[0]
    assert outcomes[2].ok, outcomes[2]


@on_group(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
def test_the_debug_level_detail(rank):
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()
    x = torch.ones(3)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((3,), 2.0))


def test_registering_loads_no_compiled_module_and_torch_alone_suffices():
    check = (
        "import torch, sys, shmring.torch; shmring.torch.register(); shmring.torch.register();"
        "import torch.distributed as dist; assert 'SHMRING' in dir(dist.Backend);"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'shmring'))"
    )
    assert run_python("-c", check) == "shmring shmring.errors shmring.torch shmring.version\n"


def train_ddp(hook):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    if hook:
        model.register_comm_hook(None, hook)
    return lambda: model(torch.ones(4, 64)).sum().backward()


def train_fsdp():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    for module in (*model, model):
        fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return lambda: model(torch.ones(4, 64)).sum().backward()


def train_pipeline(kind):
    rank, n = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(torch.nn.Linear(64, 64), rank, n, torch.device("cpu"))
    schedule = kind(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    x = torch.ones(8, 64)
    return lambda: schedule.step(*(() if rank else (x,)), **({"target": x} if rank == n - 1 else {}))


def killed_while_training(rank, make, *choices):
    step = make(*choices)
    step()
    if rank == 1:
        os.kill(os.getpid(), 9)
    with pytest.raises(RuntimeError) as caught:
        for _ in range(100_000):
            step()
    found = shmring.torch.error_of(caught.value)
    assert isinstance(found, shmring.PeerLostError), repr(caught.value)
    assert found.rank == 1
    assert shmring.torch.error_of(RuntimeError("of another library")) is None


@pytest.mark.parametrize(
    ("make", "choices"),
    [
        (train_ddp, (None,)),
        (train_ddp, (shmring.torch.bf16_hook,)),
        (train_fsdp, ()),
        (train_pipeline, (ScheduleGPipe,)),
        (train_pipeline, (Schedule1F1B,)),
    ],
)
def test_the_error_behind_one_of_training_has_its_class_and_rank(make, choices):
    outcomes = start_group(3, killed_while_training, make, *choices).outcomes()
    assert outcomes[1].signal == 9
    assert outcomes[0].ok, outcomes[0]
    assert outcomes[2].ok, outcomes[2]
