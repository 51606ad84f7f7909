"""Frameworks that stand on torch.distributed train on groups of shmring; each is skipped where it is not installed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("frameworks.py")
WATCHDOG_S = 900  # DeepSpeed compiles an operator of its own when first used
RANKS = 2


@pytest.mark.parametrize("name", ["accelerate", "lightning", *(f"deepspeed {stage}" for stage in range(4))])
def test_training(name):
    if find_spec(name.partition(" ")[0]) is None:
        pytest.skip("not installed")
    command = [sys.executable, "-m", "shmring", "run", "-n", str(RANKS), str(PROGRAM), name]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"rank {rank} has learned" in done.stdout for rank in range(RANKS))
