"""PyTorch over shmring: `torch.distributed`'s backend ``"shmring"``, and calls on tensors without it.

    import torch.distributed as dist
    dist.init_process_group("shmring")        # or "cpu:shmring"; nothing else needs to change

Torch registers the backend when it is imported, by an entry point of the package (see ``docs/torch.md``); importing
this package registers it, too. The names below are loaded when they are first used: importing starts no thread and
creates no shared memory.
"""

from importlib import import_module

from _shmring_torch import register

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

__all__ = ["register", *_MODULES]

register()


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"shmring.{_MODULES[name]}"), name)
    return value
