"""Dictionaries of tensors as objects that communicators send: large tensors do not pass through the pickle."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch


class PackedTensor(NamedTuple):
    """A tensor's bytes, type and shape."""

    content: np.ndarray
    dtype: torch.dtype
    shape: tuple[int, ...]


def pack(tensors: dict[str, Any]) -> dict[str, Any]:
    """The same dictionary with each tensor packed: its own memory if it is contiguous, else a copy."""
    return {name: _pack(x) if isinstance(x, torch.Tensor) else x for name, x in tensors.items()}


def unpack(packed: dict[str, Any]) -> dict[str, Any]:
    """The dictionary that was packed."""
    return {name: _unpack(x) if isinstance(x, PackedTensor) else x for name, x in packed.items()}


def _pack(x: torch.Tensor) -> PackedTensor:
    content = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return PackedTensor(content, x.dtype, tuple(x.shape))


def _unpack(packed: PackedTensor) -> torch.Tensor:
    return torch.from_numpy(packed.content).view(packed.dtype).view(packed.shape)
