"""Making the backend known to `torch.distributed`, which says when a group is to be made."""

from __future__ import annotations

import torch.distributed as dist

NAME = "shmring"


def register_backend() -> None:
    """Register ``"shmring"`` for tensors in main memory, unless it is known or this torch cannot distribute at all."""
    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu"])


def _make(options, settings):
    from shmring.torch.processgroup import make  # by now the program wants it

    return make(options, settings)
