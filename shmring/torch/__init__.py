"""PyTorch over shmring: `torch.distributed`'s backend ``"shmring"``, and calls on tensors without it.

    import torch.distributed as dist
    dist.init_process_group("shmring")        # or "cpu:shmring"; nothing else needs to change

Torch imports this package when it is imported itself, by the entry point ``torch.backends``, and calls `register` (see
``docs/torch.md``); so does importing it. The names below are loaded when they are first used: importing takes some
milliseconds, loads no compiled module, starts no thread and creates no shared memory.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmring.launch.named import communicator, set_communicator
    from shmring.torch.barrier import monitored_barrier
    from shmring.torch.errors import error_of
    from shmring.torch.hooks import bf16_hook
    from shmring.torch.processgroup import ProcessGroup
    from shmring.torch.shared_storage import share_gradients, share_parameters
    from shmring.torch.tensor_calls import all_reduce_

# Public name -> its module.
_MODULES = {
    "ProcessGroup": "torch.processgroup",
    "all_reduce_": "torch.tensor_calls",
    "bf16_hook": "torch.hooks",
    "communicator": "launch.named",
    "error_of": "torch.errors",
    "monitored_barrier": "torch.barrier",
    "set_communicator": "launch.named",
    "share_gradients": "torch.shared_storage",
    "share_parameters": "torch.shared_storage",
}

__all__ = [
    "ProcessGroup",
    "all_reduce_",
    "bf16_hook",
    "communicator",
    "error_of",
    "monitored_barrier",
    "register",
    "set_communicator",
    "share_gradients",
    "share_parameters",
]


def register() -> None:
    """Register the backend ``"shmring"`` with `torch.distributed`, for CPU tensors. Idempotent."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "SHMRING"):
        dist.Backend.register_backend("shmring", _make, extended_api=True, devices=["cpu"])
    if dist.is_available() and os.environ.get("SHMRING_TORCH_TAKEOVER"):
        from shmring.torch.takeover import take_over

        take_over()


def _make(options: Any, settings: Any) -> Any:
    from shmring.torch.connect import make  # loaded when the first group is made

    return make(options, settings)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"shmring.{_MODULES[name]}"), name)
    return value


register()
