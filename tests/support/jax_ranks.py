"""Ranks with JAX: the communicator of the ranks is the default one of `shmring.jax`."""

import functools
import os

from support.harness import run_ranks, start_ranks
from support.on_ranks import on_ranks

PATIENCE_S = 240.0  # they compile for a minute and more where processors are busy


def start_jax(n, fn, *args, x64=False, **options):
    """Start ``fn(comm, *args)`` in ``n`` ranks of a fresh communicator, and return at once."""
    return start_ranks(n, _with_default, fn, args, x64, **options)


def run_jax(n, fn, *args, x64=False, timeout=PATIENCE_S, **options):
    """Run ``fn(comm, *args)`` in ``n`` ranks; results by rank, or the first failure raised."""
    return run_ranks(n, _with_default, fn, args, x64, timeout=timeout, **options)


on_jax = functools.partial(on_ranks, run=run_jax)  # a decorator


def _with_default(comm, fn, args, x64):
    # Most of the time goes to compilation, of small functions that are executed once.
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    import jax

    import shmring.jax

    jax.config.update("jax_enable_x64", x64)
    shmring.jax.set_communicator(comm)
    return fn(comm, *args)
