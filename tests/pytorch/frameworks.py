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
    elif stage == "sums":
        deepspeed_sums()
    else:
        finish(*(deepspeed(int(stage)) if name == "deepspeed" else accelerate()))
    dist.destroy_process_group()
