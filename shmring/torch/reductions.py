"""Torch's reduction operations by the names the core has for them."""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

_KINDS = ReduceOp.RedOpType

NAMES = {
    _KINDS.SUM: "sum",
    _KINDS.AVG: "avg",
    _KINDS.PRODUCT: "prod",
    _KINDS.MIN: "min",
    _KINDS.MAX: "max",
    _KINDS.BAND: "band",
    _KINDS.BOR: "bor",
    _KINDS.BXOR: "bxor",
    _KINDS.PREMUL_SUM: "premul_sum",
}

# Torch's enumerations take a microsecond to hash and compare, so they are looked up by number.
_BY_NUMBER = [NAMES[kind] for kind in sorted(NAMES, key=int)]


def name_of(op: ReduceOp) -> str:
    """The core's name of a torch operation, or ``premul_sum``, which the core has not."""
    return _BY_NUMBER[op.op]


def multiplied(x: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    """The summand of a premultiplied sum: ``x`` times the factor that goes with the operation."""
    return x * op.__getstate__()[1]
