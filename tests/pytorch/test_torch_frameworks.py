"""Frameworks that stand on torch.distributed, on groups of shmring; each is skipped where it is not installed."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM, PRETRAINED = (Path(__file__).with_name(name) for name in ("frameworks.py", "pretrained.py"))
WATCHDOG_S = 900  # DeepSpeed compiles an operator of its own when first used
RANKS = 2


def run(program, *arguments, ranks=RANKS, **settings):
    """Run a program in ranks; its output."""
    command = [sys.executable, "-m", "shmring", "run", "-n", str(ranks), str(program), *arguments]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **settings}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["accelerate", "lightning", *(f"deepspeed {stage}" for stage in range(4))])
def test_training(name):
    if find_spec(name.partition(" ")[0]) is None:
        pytest.skip("not installed")
    output = run(PROGRAM, name)
    assert all(f"rank {rank} has learned" in output for rank in range(RANKS))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_sums_of_deepspeed(ranks):
    if find_spec("deepspeed") is None:
        pytest.skip("not installed")
    output = run(PROGRAM, "deepspeed sums", ranks=ranks)
    assert all(f"rank {rank} has summed" in output for rank in range(ranks))


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_of_groups_of_sglang_for_cpus(ranks):
    if find_spec("sglang") is None:
        pytest.skip("not installed")
    output = run(PROGRAM, "sglang", ranks=ranks, SHMRING_TORCH_TAKEOVER="gloo")
    assert all(f"rank {rank} has called" in output for rank in range(ranks))


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("llama", {"tp_plan": "auto"}),
        ("llama", {"pp_size": 2}),
        ("llama", {"fsdp_size": 2}),
        ("qwen3_moe", {"tp_size": 2, "ep_size": 2}),
    ],
)
def test_parts_of_a_pretrained_model_answer_as_the_whole_and_as_on_gloo(model, sizes, tmp_path):
    if find_spec("transformers") is None or find_spec("accelerate") is None:
        pytest.skip("transformers and accelerate are not installed")
    import torch

    for backend in ("shmring", "gloo"):
        run(PRETRAINED, backend, model, json.dumps(sizes), str(tmp_path))
    ours, others = (torch.load(tmp_path / f"{backend}.pt") for backend in ("shmring", "gloo"))
    for wanted in (others["parts"], ours["whole"]):
        torch.testing.assert_close(ours["parts"]["logits"], wanted["logits"], rtol=1e-4, atol=1e-4)
        if wanted["tokens"] is not None:
            assert torch.equal(ours["parts"]["tokens"], wanted["tokens"])
