"""Dense tensors of one dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def dense(x: torch.Tensor) -> torch.Tensor:
    """``x`` as one dimension: its own memory if it is contiguous, else a copy."""
    x = x.resolve_conj().resolve_neg().contiguous()
    return x.as_strided((x.numel(),), (1,))  # `view` would keep the strides of a single element


def copy_back(flat: torch.Tensor, x: torch.Tensor) -> None:
    """Copy ``flat``, made by `dense`, back into ``x`` if it is a copy."""
    if flat.data_ptr() != x.data_ptr():
        x.copy_(flat.view(x.shape))


def joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate pieces of one tensor: without a copy if they are adjacent."""
    first = pieces[0]
    address = first.data_ptr()
    for piece in pieces:
        if piece.data_ptr() != address:
            return torch.cat(list(pieces))
        address += piece.nbytes
    return first.as_strided((sum(map(len, pieces)),), (1,))
