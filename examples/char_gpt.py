"""Train a small GPT on characters, its batches shared out by DistributedDataParallel, on text that every Python has.

    pip install torch
    OMP_NUM_THREADS=1 shmring run -n 2 examples/char_gpt.py        # or: torchrun --nproc-per-node 2 ...

Nothing here is of shmring but the name of the backend. Where shmring is installed, torch finds it without the import.
"""

import sys
from pydoc_data.topics import topics  # the reference manual, as help() shows it

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import shmring.torch  # noqa: F401

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 128, 4, 2, 16


class Block(nn.Module):
    """Attention to what came before, and a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.mix(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))


class GPT(nn.Module):
    """Characters in, scores of the next ones out."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.letters(x) + self.places.weight[: x.shape[1]])))


def continue_text(model: nn.Module, text: str, alphabet: list[str], length: int) -> str:
    """What the model would write."""
    written = [alphabet.index(letter) for letter in text]
    with torch.no_grad():
        for _ in range(length):
            scores = model(torch.tensor([written[-CONTEXT:]]))[0, -1]
            written.append(int(torch.multinomial((scores / 0.7).softmax(0), 1)))
    return "".join(alphabet[number] for number in written)


dist.init_process_group("shmring")
rank, size = dist.get_rank(), dist.get_world_size()

text = "\n".join(topics[name] for name in sorted(topics))
alphabet = sorted(set(text))
data = torch.tensor([alphabet.index(letter) for letter in text])

torch.manual_seed(rank)  # ranks draw different batches; DDP gives all of them rank 0's parameters
model = DistributedDataParallel(GPT(len(alphabet)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for _ in range(STEPS):
    starts = torch.randint(len(data) - CONTEXT, (BATCH, 1))
    batch = data[starts + torch.arange(CONTEXT + 1)]
    loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()  # gradients are summed over the ranks while this goes on
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    losses.append(mean.item())

mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
all_ranks = [torch.empty_like(mine) for _ in range(size)]
dist.all_gather(all_ranks, mine)
assert all(torch.equal(mine, each) for each in all_ranks), "all ranks have the same bits"
if rank == 0:
    print(f"{size} ranks, {len(mine)} parameters, {STEPS} steps on {len(text)} characters")
    print(f"loss {losses[0]:.2f} -> {sum(losses[-10:]) / len(losses[-10:]):.2f}, the same bits on all ranks")
    print(continue_text(model.module, "The ", alphabet, 120))
dist.destroy_process_group()
