"""JAX over shmring: the collectives of JAX itself, and functions for programs that think in ranks.

    import shmring.jax
    shmring.jax.initialize()      # before `import jax`: psum, shard_map, multihost_utils ... now run over shmring

The names below are loaded when they are first used: importing this package loads no jax, starts no thread and creates
no shared memory (see ``docs/jax.md``).
"""

from importlib import import_module

# Public name -> its module.
_MODULES = {
    "initialize": "start",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
