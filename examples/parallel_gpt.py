"""Train a small GPT cut in three ways: each layer among tensor ranks, layers among stages, batches among data ranks.

    pip install torch
    OMP_NUM_THREADS=1 shmring run -n 8 examples/parallel_gpt.py                # or: torchrun --nproc-per-node 8 ...
    ... examples/parallel_gpt.py --tensor 2 --stages 1 --steps 50 --schedule GPipe --backends shmring gloo

The sequence is cut as well, where a layer does not need the whole of it: that is the fourth way. All parts are torch's:
tensor and sequence parallel layers of DTensor, schedules of `torch.distributed.pipelining`, `fully_shard`. The losses
are those of one process, which rank 0 trains afterwards. Schedules that compute gradients of weights apart
(zero-bubble ones; tried with ZBVZeroBubble) miss some of the layers cut here, with gloo alike: not for this model.
"""

import argparse
import os
import resource
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from pydoc_data.topics import topics  # the reference manual, as help() shows it

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import shmring.torch  # noqa: F401  where shmring is installed, torch finds it without

CONTEXT, WIDTH, HEADS, LAYERS, BATCH, MICROBATCHES = 32, 64, 4, 4, 16, 4
WARM_UP = 2


class Attention(nn.Module):
    """To what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.mix = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.mix(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Start(nn.Module):
    """Letters in, vectors out."""

    def __init__(self, nletters: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(nletters, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.letters(x) + self.places(torch.arange(CONTEXT).expand(x.shape))


class End(nn.Module):
    """Vectors in, scores of the next letters out."""

    def __init__(self, nletters: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, nletters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x))


LOCAL = {"input_layouts": Replicate(), "output_layouts": Shard(1)}
WHOLE = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
PLANS = {
    Start: {"letters": RowwiseParallel(**LOCAL), "places": RowwiseParallel(**LOCAL)},
    Block: {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": WHOLE,
        "feed": WHOLE,
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.mix": RowwiseParallel(output_layouts=Shard(1)),
        "feed.0": ColwiseParallel(),
        "feed.2": RowwiseParallel(output_layouts=Shard(1)),
    },
    End: {"norm": SequenceParallel(), "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())},
}


def layers_of(nletters: int) -> list[nn.Module]:
    """The whole model, the same on every rank."""
    torch.manual_seed(0)
    return [Start(nletters), *(Block() for _ in range(LAYERS)), End(nletters)]


def loss_of(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The mean over a batch's letters."""
    return cross_entropy(scores.flatten(0, 1), wanted.flatten())


def batches(data: torch.Tensor, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches that are equal on every rank."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(len(data) - CONTEXT, (BATCH, 1), generator=generator)
        batch = data[starts + torch.arange(CONTEXT + 1)]
        yield batch[:, :-1], batch[:, 1:]


def my_stages(args: Namespace, mesh: DeviceMesh, nletters: int) -> Iterator[pipelining.PipelineStage]:
    """The stages of this rank, cut among its tensor ranks and among its data ranks."""
    n, rank = mesh["stage"].size(), mesh["stage"].get_local_rank()
    single = issubclass(get_schedule_class(args.schedule), PipelineScheduleSingle)
    total = n if single else 2 * n
    layers = layers_of(nletters)
    for k in range(rank, total, n):
        inner = range(1 + k * LAYERS // total, 1 + (k + 1) * LAYERS // total)
        numbers = [*([0] if k == 0 else []), *inner, *([LAYERS + 1] if k == total - 1 else [])]
        module = nn.Sequential(*(layers[i] for i in numbers))
        for layer in module:
            parallelize_module(layer, mesh["tensor"], PLANS[type(layer)])
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(module, mesh=mesh["data"])
        yield pipelining.PipelineStage(module, k, total, torch.device("cpu"), group=mesh.get_group("stage"))


def processor_s() -> float:
    """Of this process, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def train(args: Namespace, backend: str, data: torch.Tensor, nletters: int) -> tuple[list[float], float, float]:
    """On all ranks: the losses, tokens per second, and microseconds of processor time per token."""
    dist.init_process_group(backend)
    ndata = dist.get_world_size() // (args.tensor * args.stages)
    shape, names = (ndata, args.stages, args.tensor), ("data", "stage", "tensor")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    stages = list(my_stages(args, mesh, nletters))
    kind = get_schedule_class(args.schedule)
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([p for stage in stages for p in stage.submod.parameters()], lr=1e-2, foreach=False)
    losses: list[float] = []
    start, used = time.perf_counter(), processor_s()
    for step, (x, y) in enumerate(batches(data, args.steps)):
        if step == WARM_UP:  # the first steps find shapes and make buffers
            start, used = time.perf_counter(), processor_s()
        mine = torch.arange(BATCH).chunk(ndata)[mesh["data"].get_local_rank()]
        optimizer.zero_grad()
        parts: list[torch.Tensor] = []
        schedule.step(
            *([x[mine]] if any(stage.is_first for stage in stages) else []),
            **({"target": y[mine], "losses": parts} if any(stage.is_last for stage in stages) else {}),
        )
        optimizer.step()
        total = torch.stack(parts).mean().detach() if parts else torch.zeros(())
        dist.all_reduce(total)  # of the last stages; tensor ranks have the same
        losses.append(total.item() / ndata / args.tensor)
    took, spent = time.perf_counter() - start, torch.tensor(processor_s() - used)
    dist.all_reduce(spent)
    dist.destroy_process_group()
    tokens = (args.steps - WARM_UP) * BATCH * CONTEXT
    return losses, tokens / took, spent.item() / tokens * 1e6


def train_alone(args: Namespace, data: torch.Tensor, nletters: int) -> list[float]:
    """In one process."""
    model = nn.Sequential(*layers_of(nletters))
    losses: list[float] = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in batches(data, args.steps):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train on each backend, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensor", type=int, default=2, help="ranks that share a layer")
    parser.add_argument("--stages", type=int, default=2, help="ranks that share the layers")
    parser.add_argument("--schedule", default="Interleaved1F1B", help="GPipe, 1F1B, LoopedBFS or Interleaved1F1B")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--backends", nargs="*", default=["shmring", "gloo"])
    args = parser.parse_args()
    nranks = int(os.environ["WORLD_SIZE"])
    if nranks % (args.tensor * args.stages):
        cut = f"--tensor {args.tensor} times --stages {args.stages}"
        parser.error(f"{nranks} ranks: must be a multiple of {cut}; 2 ranks train with --stages 1 or --tensor 1")
    if args.steps <= WARM_UP:
        parser.error(f"--steps {args.steps}: must be more than {WARM_UP}, which are not timed")
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # its result is a view, which nothing here changes
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(letter) for letter in text])
    found = {backend: train(args, backend, data, len(alphabet)) for backend in args.backends}
    if os.environ["RANK"] == "0":
        alone = train_alone(args, data, len(alphabet))
        for backend, (losses, speed, us) in found.items():
            far = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
            used = f"{speed:.0f} tokens per second, {us:.0f} us of processor time per token"
            print(f"{backend}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {used}")
            print(f"{backend}: at most {far:.1e} from the losses of one process")


if __name__ == "__main__":
    main()
