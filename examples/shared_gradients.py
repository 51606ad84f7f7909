"""Train the same network twice, the second time with its gradients in shared memory, and compare the losses.

    pip install torch
    OMP_NUM_THREADS=1 shmring run -n 2 examples/shared_gradients.py      # or: torchrun --nproc-per-node 2 ...

Torch allocates the buckets in which DistributedDataParallel averages gradients. ``share_gradients`` makes that memory
shared where it lies, so that no rank copies gradients into staging memory and back.
"""

import statistics
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import shmring.torch

STEPS, BATCH, WIDTH, CLASSES = 12, 16, 1024, 10


def network() -> torch.nn.Module:
    """A few wide layers: much memory to average, little arithmetic."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, CLASSES)]
    return torch.nn.Sequential(*layers)


def train(shares: bool) -> tuple[list[float], float, int]:
    """Losses on this rank, the median of the seconds of a step, and the bytes of gradients that are shared then."""
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    losses: list[float] = []
    seconds: list[float] = []
    with shmring.torch.share_gradients(model) if shares else nullcontext() as shared:
        for _ in range(STEPS):
            x = torch.randn(BATCH, WIDTH, generator=batches)
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = cross_entropy(model(x), x[:, :CLASSES].argmax(1))
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - start)
            losses.append(loss.item())
        return losses, statistics.median(seconds), shared.nbytes if shared is not None else 0


dist.init_process_group("shmring")
staged, staged_s, _ = train(shares=False)
shared, shared_s, nbytes = train(shares=True)
assert nbytes > 2 * 4 * WIDTH * WIDTH or dist.get_world_size() == 1
if dist.get_world_size() in (1, 2, 4, 8):  # to divide before the sum, as torch does, is then the same as after it
    assert shared == staged
torch.testing.assert_close(torch.tensor(shared), torch.tensor(staged))
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, the same losses: {shared[0]:.3f} -> {shared[-1]:.3f}")
    print(f"{nbytes} bytes shared; median of the steps {1e3 * shared_s:.1f} ms, {1e3 * staged_s:.1f} ms with staging")
dist.destroy_process_group()
