"""What torch calls as it is imported (entry point ``torch.backends``): makes the backend ``"shmring"`` known to it.

Beside the package and not in it: programs that have no use for the package do not load it with torch.
"""


def register():
    """Make ``"shmring"`` known to `torch.distributed`, for tensors in main memory. May be repeated."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "SHMRING"):
        dist.Backend.register_backend("shmring", _make, extended_api=True, devices=["cpu"])


def _make(options, settings):
    from shmring.torch.processgroup import make  # by now the program wants it

    return make(options, settings)
