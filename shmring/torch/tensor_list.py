"""Lists of tensors as one contiguous tensor, the form that the core's collectives take."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shmring.dtypes import DTYPE_CODES

_REDUCIBLE = {getattr(torch, name) for name in DTYPE_CODES if hasattr(torch, name)}
# Types whose bytes are all that there is to move. A quantized tensor has a scale beside them.
_BYTES = ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32", "bits8", "bits16",
          "bits1x8", "bits2x4", "bits4x2")  # fmt: skip
_MOVED_AS_BYTES = {getattr(torch, name) for name in _BYTES if hasattr(torch, name)}


def movable(x: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bytes if the core cannot reduce its dtype (other float8 and the like)."""
    if x.dtype in _REDUCIBLE:
        return x
    if x.dtype not in _MOVED_AS_BYTES:
        raise TypeError(f"tensors of {x.dtype} are not supported; of a quantized one pass int_repr(), and the scales")
    return x.view(torch.uint8)


class PackedTensors:
    """Tensors one after the other in memory: the tensors themselves if they are adjacent, else a private copy.

    Attributes
    ----------
    memory : torch.Tensor, of one dimension
    counts : list of int
        Elements of each tensor.
    even : bool
        Whether all tensors have the same size.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        first = tensors[0]
        if any(t.dtype != first.dtype for t in tensors):
            raise TypeError(f"the tensors of a list must have one dtype, not {sorted({str(t.dtype) for t in tensors})}")
        self._tensors = [movable(t) for t in tensors]
        self.counts = [t.numel() for t in self._tensors]
        self.even = len(set(self.counts)) == 1
        self._is_copy = not _are_adjacent(self._tensors)
        first, total = self._tensors[0], sum(self.counts)
        self.memory = first.new_empty(total) if self._is_copy else first.as_strided((total,), (1,))

    def pack(self) -> None:
        """Copy the tensors into `memory`, unless they lie there."""
        if self._is_copy:
            for piece, t in zip(self.memory.split(self.counts), self._tensors, strict=True):
                piece.copy_(t.reshape(-1))

    def unpack(self) -> None:
        """Copy `memory` into the tensors, unless they lie there."""
        if self._is_copy:
            for piece, t in zip(self.memory.split(self.counts), self._tensors, strict=True):
                t.copy_(piece.view(t.shape))


def _are_adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    place, storage = tensors[0].data_ptr(), tensors[0].untyped_storage().data_ptr()
    for t in tensors:
        if not (t.numel() and t.is_contiguous() and t.data_ptr() == place):
            return False
        if t.untyped_storage().data_ptr() != storage:
            return False
        place += t.nbytes
    return True
