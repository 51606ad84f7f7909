"""PyTorch over shmring: `torch.distributed`'s backend ``"shmring"``, and calls on tensors without it.

    import torch.distributed as dist
    dist.init_process_group("shmring")        # or "cpu:shmring"; nothing else needs to change

Torch knows the backend as soon as it is imported (an entry point of the package, see ``docs/torch.md``); importing this
makes it known, too. The names below are loaded when they are first used: importing starts no thread, and makes no
shared memory.
"""

from importlib import import_module

from _shmring_torch import register

# Public name -> the module here that has it.
_WHERE = {
    "ProcessGroup": "processgroup",
    "all_gather": "tensor_calls",
    "all_reduce_": "tensor_calls",
    "bf16_hook": "hooks",
    "broadcast_": "tensor_calls",
    "communicator": "tensor_calls",
    "monitored_barrier": "barrier",
    "plan": "tensor_calls",
    "reduce_scatter": "tensor_calls",
    "set_communicator": "tensor_calls",
}

__all__ = ["register", *_WHERE]

register()


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value
