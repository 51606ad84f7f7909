"""JAX over shmring: the collectives of JAX itself, and functions that call collectives by rank.

    import shmring.jax
    shmring.jax.initialize()      # before `import jax`: psum, shard_map, multihost_utils ... now run over shmring

The names below are loaded when they are first used: importing this package loads no jax, starts no thread and creates
no shared memory (see ``docs/jax.md``).
"""

from importlib import import_module

# Public name -> its module.
_MODULES = {
    "Status": "jax.functions.messages",
    "all_gather": "jax.functions.movement",
    "all_reduce": "jax.functions.reductions",
    "all_to_all": "jax.functions.movement",
    "barrier": "jax.functions.messages",
    "broadcast": "jax.functions.movement",
    "communicator": "launch.named",
    "copy_to_all": "jax.functions.reductions",
    "exscan": "jax.functions.reductions",
    "gather": "jax.functions.movement",
    "initialize": "jax.start",
    "new_token": "jax.functions.binding",
    "permute": "jax.functions.movement",
    "recv": "jax.functions.messages",
    "reduce": "jax.functions.reductions",
    "reduce_scatter": "jax.functions.reductions",
    "scan": "jax.functions.reductions",
    "scatter": "jax.functions.movement",
    "send": "jax.functions.messages",
    "sendrecv": "jax.functions.messages",
    "set_communicator": "launch.named",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"shmring.{_MODULES[name]}"), name)
    return value
