"""Ranks of `torch.distributed` for tests: forked with torch loaded, and met by a file."""

from __future__ import annotations

import functools
import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist

from support import harness
from support.on_ranks import on_ranks

TIMEOUT_S = 240


def run_group(n: int, fn, *args, **options) -> list:
    """Run ``fn(rank, *args)`` in ``n`` ranks of a default group; results by rank, or the first failure raised."""
    return start_group(n, fn, *args, **options).results(TIMEOUT_S)


on_group = functools.partial(on_ranks, run=run_group)  # a decorator, with the rank as first argument


def start_group(n: int, fn, *args, backend="shmring", timeout_s=60.0 * harness.PATIENCE, env=None, labels=None):
    """The same under way: a `harness.Gang`. Ranks with different ``labels`` take each other for strangers."""
    store = f"{tempfile.mkdtemp(prefix='shmring-torch-', dir=os.getcwd())}/store"
    return harness.start_processes(n, _in_group, n, backend, store, timeout_s, labels, fn, args, env=env)


def _in_group(rank: int, n: int, backend: str, store: str, timeout_s: float, labels: list | None, fn, args: tuple):
    import shmring.torch  # noqa: F401  registers, where the entry point of an installed package has not

    torch.set_num_threads(1)
    dist.set_debug_level_from_env()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(n), SHMRING_NODE=labels[rank] if labels else "")
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=n, timeout=timedelta(seconds=timeout_s)
    )
    try:
        return fn(rank, *args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
