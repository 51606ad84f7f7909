"""Checks of training that every rank of a group runs, on one node or on several."""

import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import shmring.torch

STEPS = 3


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 4)).double()


def batch(step, rank):
    torch.manual_seed(100 * step + rank)
    return torch.randn(16, 8).double(), torch.randn(16, 4).double()


def train(model, batches, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def alone(n, steps=STEPS):
    """The parameters after the same training in one process."""
    whole = [tuple(map(torch.cat, zip(*[batch(s, r) for r in range(n)], strict=True))) for s in range(steps)]
    return train(small_model(), whole)


def close(found, wanted, tolerance=1e-12):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=tolerance, atol=tolerance)


def ddp(rank):
    n = dist.get_world_size()
    own = [batch(s, rank) for s in range(STEPS)]
    wanted = alone(n)
    for options in ({}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        model = DistributedDataParallel(small_model(), **options)
        close(train(model, own), wanted)
    hooks = [
        (default_hooks.allreduce_hook, None, 1e-12),
        (default_hooks.fp16_compress_hook, None, 1e-2),
        (shmring.torch.bf16_hook, None, 1e-1),
        (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, 64, start_powerSGD_iter=2), 1e-1),
    ]
    for hook, state, tolerance in hooks:
        model = DistributedDataParallel(small_model(), bucket_cap_mb=0.001)
        model.register_comm_hook(state, hook)
        found = train(model, own)
        close(found, wanted, tolerance)
        for p in found:  # the same on all ranks, to the bit
            copies = [torch.empty_like(p) for _ in range(n)]
            dist.all_gather(copies, p)
            assert all(torch.equal(one, p) for one in copies), hook
