"""Entry point ``torch.backends``, called by torch when it is imported: registers the backend ``"shmring"``.

A module of its own, outside the package, so that importing torch does not load the package, unless groups of gloo are
taken over.
"""

import os
from typing import Any


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
