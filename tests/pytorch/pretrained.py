"""A program for a launcher: transformers loads a tiny random model in parts, as it is asked to, and uses it.

    pretrained.py BACKEND MODEL SIZES FOLDER      SIZES: arguments of DistributedConfig, as JSON

Rank 0 saves the logits and the generated tokens, and those of the whole model.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.distributed import DistributedConfig

import shmring.torch  # noqa: F401

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS)),
}
PROMPT = torch.tensor([[5, 17, 3, 99, 42, 7]])


def use(model, generates):
    """Logits of the prompt, and what follows it."""
    with torch.no_grad():
        logits = model(PROMPT).logits
        tokens = model.generate(PROMPT, max_new_tokens=12, do_sample=False) if generates else None
    return {"logits": logits, "tokens": tokens}


def main(backend, name, sizes, folder):
    dist.init_process_group(backend)
    rank, place = dist.get_rank(), Path(folder) / "model"
    torch.manual_seed(0)
    whole = MODELS[name]().eval()
    if rank == 0 and not place.exists():
        whole.save_pretrained(place)
    dist.barrier()
    sizes = json.loads(sizes)
    generates = "fsdp_size" not in sizes  # whose generate() needs all ranks to go on alike
    parts = AutoModelForCausalLM.from_pretrained(place, distributed_config=DistributedConfig(**sizes)).eval()
    found = use(parts, generates)
    assert dist.get_backend() == backend
    if backend == "shmring":
        groups = dist.distributed_c10d._world.pg_map
        assert sum(group.comm.stats()["calls"] for group in groups if hasattr(group, "comm")) > 10
    if rank == 0:
        torch.save({"parts": found, "whole": use(whole, generates)}, Path(folder) / f"{backend}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
