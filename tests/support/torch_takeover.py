"""A program that knows of gloo alone, for a launcher: ``case`` is the function to run."""

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def is_ours(group):
    """Whether the group is one of shmring, without importing that."""
    return type(group).__module__ == "shmring.torch.gloo_groups"


def check_sum(group=None):
    """Sum ones."""
    x = torch.ones(1000)
    dist.all_reduce(x, group=group)
    assert torch.equal(x, torch.full((1000,), float(dist.get_world_size(group))))


def groups(backend):
    """All ways to ask for groups."""
    dist.init_process_group(backend or None)
    assert dist.get_backend() == (backend or "undefined")
    assert is_ours(dist.group.WORLD)
    assert dist.group.WORLD.name() == "gloo"
    check_sum()
    if backend == "gloo":  # torch refuses it under any other name, "cpu:gloo" among them
        dist.monitored_barrier()
    some = dist.new_group([0, 1], backend="gloo")
    if dist.get_rank() < 2:
        assert is_ours(some)
        check_sum(some)
    assert is_ours(init_device_mesh("cpu", (dist.get_world_size(),)).get_group())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    model(torch.full((1, 3), float(dist.get_rank()))).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.full((1, 3), (dist.get_world_size() - 1) / 2))
    named = dist.new_group(backend="shmring")
    assert dist.get_backend(named) == "shmring"
    check_sum(named)
    boxes = [None] * dist.get_world_size()
    dist.all_gather_object(boxes, dist.get_rank())
    assert boxes == list(range(dist.get_world_size()))


def devices():
    """A group for two devices, and tensors that claim to be on the second."""
    import torch.distributed._tools.fake_collectives
    from torch._subclasses.fake_tensor import FakeTensorMode

    dist.init_process_group("cpu:gloo,cuda:fake")
    group = dist.group.WORLD
    assert is_ours(group)
    assert dist.get_backend_config() == "cpu:gloo,cuda:fake"
    assert group._get_backend(torch.device("cuda")).name() == "fake"
    assert group._get_backend(torch.device("cpu")) is group
    assert {device.type for device in group._device_types} == {"cpu", "cuda"}
    check_sum()
    calls = group.comm.stats()["calls"]
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.ones(3, device="cuda")
        dist.all_reduce(x)
        dist.all_gather([torch.empty_like(x) for _ in range(dist.get_world_size())], x)
    assert group.comm.stats()["calls"] == calls
    check_sum(dist.new_group(backend="cpu:gloo,cuda:fake"))


def several():
    """Ranks on several machines: gloo's own group."""
    dist.init_process_group("gloo")
    assert type(dist.group.WORLD) is dist.ProcessGroup
    assert isinstance(dist.group.WORLD._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    check_sum()


def late():
    """A rank that is late; the setting is not to blame."""
    import shmring

    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.get("rank 0 has given up")
        store.set("rank 1 knows", "")
        return
    try:
        dist.new_group([0, 1], timeout=datetime.timedelta(seconds=0.5))
    except shmring.RendezvousError as error:
        text = str(error)
    assert text == "rank 1 did not come to make the group within 0.5 s, its timeout"
    store.set("rank 0 has given up", "")
    store.get("rank 1 knows")  # the store ends with this process


def disagree():
    """One rank without the setting."""
    if dist.is_available() and os.environ["RANK"] == "1":
        del os.environ["SHMRING_TORCH_TAKEOVER"]
    import shmring.torch

    try:
        dist.init_process_group("gloo")
        check_sum()
    except shmring.RendezvousError as error:
        print(f"{os.environ['RANK']}: {error}", flush=True)
        os._exit(0)
    except RuntimeError as error:
        print(f"{os.environ['RANK']}: gloo: {error}", flush=True)
        os._exit(os.environ["RANK"] != "1")
    raise AssertionError("no error")


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*sys.argv[2:])
    dist.destroy_process_group()
    print(f"rank {os.environ['RANK']} is done", flush=True)
