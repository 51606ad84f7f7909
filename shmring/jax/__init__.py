"""JAX over shmring: the collectives of JAX itself, and functions for programs that think in ranks.

    import shmring.jax
    shmring.jax.initialize()      # before `import jax`: psum, shard_map, multihost_utils ... now run over shmring

The names below are loaded when they are first used: importing this package loads no jax, starts no thread and creates
no shared memory (see ``docs/jax.md``).
"""

from importlib import import_module

# Public name -> its module.
_MODULES = {
    "Status": "functions.messages",
    "all_gather": "functions.movement",
    "all_reduce": "functions.reductions",
    "all_to_all": "functions.movement",
    "barrier": "functions.messages",
    "broadcast": "functions.movement",
    "communicator": "functions.communicators",
    "copy_to_all": "functions.reductions",
    "exscan": "functions.reductions",
    "gather": "functions.movement",
    "initialize": "start",
    "new_token": "functions.binding",
    "permute": "functions.movement",
    "recv": "functions.messages",
    "reduce": "functions.reductions",
    "reduce_scatter": "functions.reductions",
    "scan": "functions.reductions",
    "scatter": "functions.movement",
    "send": "functions.messages",
    "sendrecv": "functions.messages",
    "set_communicator": "functions.communicators",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
