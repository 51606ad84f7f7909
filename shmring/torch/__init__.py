"""PyTorch over shmring: `torch.distributed`'s backend ``"shmring"``, and calls on tensors without it.

    import torch.distributed as dist
    dist.init_process_group("shmring")        # or "cpu:shmring"; nothing else needs to change

`register` runs by itself whenever torch is imported (an entry point of the package, see ``docs/torch.md``). Names are
imported when they are first used: neither this module nor registering loads more than that, starts a thread or makes
shared memory.
"""

from importlib import import_module

# Public name -> the module here that has it.
_WHERE: dict[str, str] = {
    "all_gather": "direct",
    "all_reduce_": "direct",
    "broadcast_": "direct",
    "communicator": "direct",
    "plan": "direct",
    "reduce_scatter": "direct",
    "set_communicator": "direct",
}

__all__ = ["register", *_WHERE]  # noqa: PLE0604


def register() -> None:
    """Make ``"shmring"`` known to `torch.distributed`. Called by torch itself as it is imported; may be repeated."""
    from shmring.torch.registration import register_backend

    register_backend()


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value
