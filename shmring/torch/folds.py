"""Tensors laid out densely, and folds of them by the core's kernels, to the core's bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shmring.dtypes import DTYPE_CODES, OPS, is_defined, op_code
from shmring.reduce import reduce_arrays

# 16-bit floats are folded in 32 bits and rounded once, at the end.
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_CHOICES = ("min", "max")  # that give one of the inputs


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


def fold(sources: Sequence[torch.Tensor], op: str, out: torch.Tensor) -> torch.Tensor:
    """Combine in the order given, by the core's kernels, so to the core's bits."""
    if out.numel():
        reduce_arrays([x.numpy() for x in sources], op, out.numpy())
    return out


def wide_type(dtype: torch.dtype, op: str) -> torch.dtype:
    """What a fold is made in: 16-bit floats in 32 bits, but not minima where NumPy has the type: nothing is rounded."""
    return dtype if dtype == torch.float16 and op in _CHOICES else _WIDE.get(dtype, dtype)


def rounded(x: torch.Tensor, op: str, out: torch.Tensor) -> torch.Tensor:
    """A fold in the element type of ``out``: put there, or ``x`` itself if it has that type."""
    if x.dtype == out.dtype:
        return x
    if op in _CHOICES:  # of bfloat16, the upper halves: an input to the bit, NaNs too
        out.view(torch.int16).copy_(x.view(torch.int16)[1::2])
        return out
    out.copy_(x)
    return out.masked_fill_(out.isnan(), torch.nan)  # the core's sums have one NaN, torch's rounding another


def checked(op: str, x: torch.Tensor) -> str:
    """The core's own name of an operation, which must be defined on these elements."""
    name, dtype = OPS[op_code(op)], str(x.dtype).removeprefix("torch.")
    if dtype not in DTYPE_CODES or not is_defined(name, dtype):
        raise TypeError(f"op {name!r} is not defined on {dtype}")
    return name
