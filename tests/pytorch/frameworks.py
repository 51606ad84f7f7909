"""A program for a launcher: a small regression, trained by the framework that is named, on groups of shmring."""

import os
import sys

import torch
import torch.distributed as dist

import shmring.torch  # noqa: F401

torch.manual_seed(0)
X = torch.randn(64, 8)
Y = X.sum(1, keepdim=True)
BATCH = 8


def network():
    """What is trained."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def batches():
    """What it is trained on."""
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=BATCH)


def accelerate():
    """Its model, optimizer and loader, and its own collectives."""
    from accelerate import Accelerator
    from accelerate.utils import gather_object

    dist.init_process_group("shmring")
    it = Accelerator(cpu=True)
    model, losses = network(), []
    model, optimizer, loader = it.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), batches())
    for _ in range(5):
        for x, y in loader:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            it.backward(loss)
            optimizer.step()
            losses.append(it.reduce(loss.detach(), "mean").item())
    assert it.num_processes == dist.get_world_size()
    assert it.gather(torch.tensor([it.process_index])).tolist() == list(range(it.num_processes))
    assert gather_object([it.process_index]) == list(range(it.num_processes))
    it.wait_for_everyone()
    return model, losses


def lightning():
    """Its trainer, with logged means that are synchronised: among them one of an integer, the batch size."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    class Regression(LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = network()
            self.losses = []

        def training_step(self, batch, _):
            loss = ((self.inner(batch[0]) - batch[1]) ** 2).mean()
            self.log("loss", loss, sync_dist=True, on_epoch=True)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

        def on_train_end(self):
            seen = [None] * dist.get_world_size()
            dist.all_gather_object(seen, self.trainer.callback_metrics["loss_epoch"].item())
            assert len(set(seen)) == 1, seen
            finish(self.inner, self.losses)

    quiet = dict.fromkeys(("enable_progress_bar", "logger", "enable_checkpointing", "enable_model_summary"), False)
    strategy = DDPStrategy(process_group_backend="shmring")
    devices = int(os.environ["WORLD_SIZE"])
    Trainer(accelerator="cpu", devices=devices, strategy=strategy, max_epochs=3, **quiet).fit(Regression(), batches())


def deepspeed(stage):
    """Its engine at this stage of ZeRO, and its own collectives."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    dist.init_process_group("shmring")
    deepspeed.init_distributed(dist_backend="shmring")
    model, losses = network(), []
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": stage == 3},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    dtype = next(engine.parameters()).dtype
    for step in range(20):
        start = (dist.get_world_size() * step + dist.get_rank()) * BATCH % len(X)
        rows = slice(start, start + BATCH)
        loss = ((engine(X[rows].to(dtype)) - Y[rows].to(dtype)) ** 2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    x = torch.ones(4)
    deepspeed.comm.all_reduce(x)
    assert torch.equal(x, torch.full((4,), float(dist.get_world_size())))
    with deepspeed.zero.GatheredParameters(list(engine.parameters()), enabled=stage == 3):
        return [p.detach().clone() for p in engine.parameters()], losses


def deepspeed_sums():
    """The sums of DeepSpeed's own tests of its communication, with its operator left out: all are the group's."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group("shmring")
    deepspeed.init_distributed(dist_backend="shmring")
    n, own, comm = dist.get_world_size(), dist.get_rank() + 1, dist.group.WORLD.comm
    for call in (deepspeed.comm.all_reduce, deepspeed.comm.inference_all_reduce):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for count in (128, 3):
                x, before = torch.full((1, count), own, dtype=dtype), comm.stats()["calls"]
                call(x)
                assert torch.equal(x, torch.full((1, count), n * (n + 1) // 2, dtype=dtype)), (call, dtype)
                # its inference_all_reduce returns at once in one rank
                assert comm.stats()["calls"] - before == (n > 1 or call is deepspeed.comm.all_reduce)
    print(f"rank {own - 1} has summed", flush=True)


def sglang_calls():
    """The calls of its groups for CPUs, which ask for gloo."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    from sglang.srt.distributed import parallel_state

    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    parallel_state.init_distributed_environment(n, rank, local_rank=rank, backend="gloo")
    group = parallel_state.init_model_parallel_group([list(range(n))], rank, "gloo", group_name="tp")
    before = group.device_group.comm.stats()["calls"]
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        summed = group.all_reduce(torch.full((4, 8), rank + 1, dtype=dtype))
        assert torch.equal(summed, torch.full((4, 8), n * (n + 1) // 2, dtype=dtype))
    parts = [torch.full((2, 3), float(r)) for r in range(n)]
    for dim in (0, 1):
        assert torch.equal(group.all_gather(parts[rank], dim=dim), torch.cat(parts, dim))
        gathered = group.gather(parts[rank], n - 1, dim)
        assert torch.equal(gathered, torch.cat(parts, dim)) if rank == n - 1 else gathered is None
    gathered, share = torch.empty(2 * n), torch.empty(2)
    group.all_gather_into_tensor(gathered, parts[rank].flatten()[:2])
    assert torch.equal(gathered, torch.arange(n).repeat_interleave(2).float())
    group.reduce_scatter_tensor(share, torch.arange(2.0 * n))
    assert torch.equal(share, n * (torch.arange(2.0) + 2 * rank))
    assert torch.equal(group.broadcast(parts[rank].clone(), 1), parts[1])
    assert group.broadcast_object({"step": 3} if rank == 0 else None, 0) == {"step": 3}
    assert group.broadcast_tensor_dict({"x": parts[0], "n": 3} if rank == 0 else None, 0)["n"] == 3
    if rank == 0:
        group.send(parts[0], n - 1)
    elif rank == n - 1:
        assert torch.equal(group.recv(torch.Size([2, 3]), torch.float32, 0), parts[0])
    group.barrier()
    assert group.device_group.comm.stats()["calls"] > before
    print(f"rank {rank} has called", flush=True)


def finish(model, losses):
    """The ranks have the same parameters, to the bit, the group was ours, and something was learned."""
    assert dist.get_backend() == "shmring"
    assert dist.group.WORLD.comm.stats()["rounds"] > 0
    parameters = model if isinstance(model, list) else list(model.parameters())
    own = torch.cat([p.detach().float().flatten() for p in parameters])
    all_of_them = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, own)
    assert all(torch.equal(one, own) for one in all_of_them)
    epoch = len(X) // BATCH // dist.get_world_size()
    assert sum(losses[-epoch:]) < sum(losses[:epoch]) / 2, losses
    print(f"rank {dist.get_rank()} has learned", flush=True)


if __name__ == "__main__":
    name, _, stage = sys.argv[1].partition(" ")
    if name == "lightning":
        lightning()
    elif name == "sglang":
        sglang_calls()
    elif stage == "sums":
        deepspeed_sums()
    else:
        finish(*(deepspeed(int(stage)) if name == "deepspeed" else accelerate()))
    dist.destroy_process_group()
