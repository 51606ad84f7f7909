"""JAX over shmring: the collectives of JAX itself, and functions that call collectives by rank.

    import shmring.jax
    shmring.jax.initialize()      # before `import jax`: psum, shard_map, multihost_utils ... now run over shmring

The names below are loaded when they are first used: importing this package loads no jax, starts no thread and creates
no shared memory (see ``docs/jax.md``).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmring.jax.functions.binding import new_token
    from shmring.jax.functions.messages import Status, barrier, recv, send, sendrecv
    from shmring.jax.functions.movement import all_gather, all_to_all, broadcast, gather, permute, scatter
    from shmring.jax.functions.reductions import all_reduce, copy_to_all, exscan, reduce, reduce_scatter, scan
    from shmring.jax.start import initialize
    from shmring.launch.named import communicator, set_communicator

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

__all__ = [
    "Status",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "communicator",
    "copy_to_all",
    "exscan",
    "gather",
    "initialize",
    "new_token",
    "permute",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "send",
    "sendrecv",
    "set_communicator",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"shmring.{_MODULES[name]}"), name)
    return value
