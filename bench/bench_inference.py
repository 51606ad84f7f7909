"""Tensor parallel inference on CPUs: sums in bfloat16, steps of a model, beside gloo, vLLM's and DeepSpeed's operators.

    OMP_NUM_THREADS=1 shmring run -n 2 bench/bench_inference.py
    OMP_NUM_THREADS=1 shmring run -n 2 bench/bench_inference.py --deepspeed ~/DeepSpeed      its sources; needs ninja

vLLM's operator takes part where a vLLM built for CPUs is installed and the number of ranks is one that it takes.
Contenders take turns as in `bench_torch.py`. The model has two layers of a Llama: attention to
the tokens before, and a gated feed-forward, with heads and columns divided among the ranks and two sums in each layer.
``decoding`` is one token after 128 others, ``prefill`` a prompt. ``no sums`` leaves the sums out: arithmetic alone.
"""

import os
import time
from importlib.util import find_spec

import pytest
from bench_torch import DEEPSPEED, DIRECT, GLOO, arena_of, parser_of
from sides import output_of, run_of

VLLM, NOTHING = "vllm", "no sums"
SIZES = (8 << 10, 256 << 10, 16 << 20)


def vllm_sum(comm):
    """The operator of vLLM, or None if it cannot take part. All ranks call."""
    here = find_spec("vllm") is not None and comm.size in (2, 3, 4, 8)
    if not all(comm.all_gather_object(here)):
        return None
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    name = comm.broadcast_object(f"shmring-bench-{os.getpid()}")
    handle = torch.ops._C.init_shm_manager(name, comm.size, comm.rank, torch.get_num_threads())
    comm.barrier()
    torch.ops._C.join_shm_manager(handle, name)
    comm.barrier()
    return lambda x: torch.ops._C.shm_allreduce(handle, x)


def contenders(arena):
    """Name -> a function that sums a tensor over the ranks, in place."""
    found = arena.reducers()
    chosen = {name: found[name] for name in (DIRECT, GLOO, DEEPSPEED) if name in found}
    other = vllm_sum(arena.comm)
    return chosen if other is None else {**chosen, VLLM: other}


def sums(arena, reducers):
    """Sums of bfloat16."""
    import torch

    for nbytes in arena.args.sizes:
        calls = {}
        for name, reduce in reducers.items():
            x = torch.full((nbytes // 2,), arena.comm.rank + 1.0, dtype=torch.bfloat16)
            reduce(x)
            assert (x == arena.comm.size * (arena.comm.size + 1) / 2).all(), f"{name} is wrong"
            x.zero_()
            calls[name] = lambda reduce=reduce, x=x: reduce(x)
        arena.row(f"all_reduce {nbytes} B", calls)


class Layer:
    """One layer's share of this rank."""

    def __init__(self, width, nranks, context):
        import torch

        def weights(rows, columns):
            return (torch.randn(rows, columns) / columns**0.5).bfloat16()

        inner = -(-width * 8 // 3 // (256 * nranks)) * 256
        self.head, self.own = 128, width // nranks
        self.qkv, self.out = weights(3 * self.own, width), weights(width, self.own)
        self.gate, self.up, self.down = weights(inner, width), weights(inner, width), weights(width, inner)
        self.before = torch.randn(2, self.own // self.head, context, self.head).bfloat16()

    def __call__(self, x, reduce, causal):
        import torch
        from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

        q, k, v = linear(rms_norm(x, x.shape[-1:]), self.qkv).unflatten(-1, (3, -1, self.head)).permute(1, 2, 0, 3)
        if not causal:
            k, v = (torch.cat([old, new], 1) for old, new in zip(self.before, (k, v), strict=True))
        part = linear(scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1).flatten(1), self.out)
        reduce(part)
        x = x + part
        normal = rms_norm(x, x.shape[-1:])
        part = linear(silu(linear(normal, self.gate)) * linear(normal, self.up), self.down)
        reduce(part)
        return x + part


class Stopwatch:
    """A sum, and the time spent in it."""

    def __init__(self, reduce):
        self.reduce, self.us = reduce, 0.0

    def __call__(self, x):
        start = time.perf_counter()
        self.reduce(x)
        self.us += (time.perf_counter() - start) * 1e6


def steps(arena, reducers):
    """Decoding and prefill: time per step, and how much of it is in sums, waiting for the slower rank included."""
    import torch

    torch.manual_seed(arena.comm.rank)
    layers = [Layer(arena.args.width, arena.comm.size, 128) for _ in range(2)]
    watches = {name: Stopwatch(reduce) for name, reduce in {**reducers, NOTHING: lambda x: None}.items()}
    for title, tokens in (("decoding", 1), ("prefill", arena.args.prompt)):
        x = torch.randn(tokens, arena.args.width).bfloat16()
        counts = dict.fromkeys(watches, 0)

        def step(name, x=x, tokens=tokens, counts=counts):
            y = x
            with torch.inference_mode():
                for layer in layers:
                    y = layer(y, watches[name], tokens > 1)
            counts[name] += 1

        for watch in watches.values():
            watch.us = 0.0
        arena.row(f"{title}, {tokens} tokens", {name: lambda name=name: step(name) for name in watches})
        shares = {name: f"{watches[name].us / counts[name]:.1f}" for name in reducers}
        if arena.comm.rank == 0:
            print(
                f"{'  of that in sums, mean':<30}", "  ".join(f"{name} {us}" for name, us in shares.items()), flush=True
            )


def main():
    """Run the rows asked for, on every rank."""
    parser = parser_of(__doc__, ["sums", "steps"], SIZES)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prefill")
    args = parser.parse_args()
    with arena_of(args) as arena:
        reducers = contenders(arena)
        for row in args.rows:
            globals()[row](arena, reducers)


@pytest.mark.torch
def test_inference_beside_gloo(benchmark, tmp_path):
    """The whole program once, with one cycle and a small model."""
    pytest.importorskip("torch")
    command = run_of(2, __file__, "--cycles", "1", "--width", "256")
    assert "of that in sums" in benchmark.pedantic(output_of, (tmp_path, *command), rounds=1)


if __name__ == "__main__":
    main()
