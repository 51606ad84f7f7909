"""Ranks of `torch.distributed` for tests: forked with torch loaded, and met by a file."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta

import harness
import torch
import torch.distributed as dist

TIMEOUT_S = 120


def run_group(n: int, fn, *args, backend: str = "shmring", timeout_s: float = 60, env: dict | None = None) -> list:
    """Run ``fn(rank, *args)`` in ``n`` ranks of a default group; results by rank, or the first failure raised."""
    return start_group(n, fn, *args, backend=backend, timeout_s=timeout_s, env=env).results(TIMEOUT_S)


def start_group(n: int, fn, *args, backend: str = "shmring", timeout_s: float = 60, env: dict | None = None):
    """The same under way: a `harness.Gang`."""
    place = tempfile.mkdtemp(prefix="shmring-torch-")
    return harness.start_processes(n, _in_group, n, backend, f"{place}/store", timeout_s, fn, args, env=env)


def _in_group(rank: int, n: int, backend: str, store: str, timeout_s: float, fn, args: tuple):
    import shmring.torch  # noqa: F401  registers, where the entry point of an installed package has not

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(n))
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=n, timeout=timedelta(seconds=timeout_s)
    )
    try:
        return fn(rank, *args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
