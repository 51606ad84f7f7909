"""Tensors laid out densely."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def dense(x: torch.Tensor) -> torch.Tensor:
    """The elements of ``x`` in one dimension: its own memory where they lie in order there, else a copy."""
    x = x.resolve_conj().resolve_neg().contiguous()
    return x.as_strided((x.numel(),), (1,))  # not a view, which leaves strange strides to a single element


def give_back(flat: torch.Tensor, x: torch.Tensor) -> None:
    """Copy into ``x`` what was made of it by `dense`, if that is a copy."""
    if flat.data_ptr() != x.data_ptr():
        x.copy_(flat.view(x.shape))


def joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pieces of one tensor side by side: that part of it if they lie so, else a copy."""
    first = pieces[0]
    place = first.data_ptr()
    for piece in pieces:
        if piece.data_ptr() != place:
            return torch.cat(list(pieces))
        place += piece.nbytes
    return first.as_strided((sum(map(len, pieces)),), (1,))
