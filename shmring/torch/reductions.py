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


def name_of(op: ReduceOp | str) -> str:
    """The core's name of an operation as `shmring.torch.options.reduction` gives it, or ``premul_sum``."""
    return op if isinstance(op, str) else NAMES[op.op]


def multiplied(x: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    """The summand of a premultiplied sum: ``x`` times the factor that goes with the operation."""
    return x * op.__getstate__()[1]
