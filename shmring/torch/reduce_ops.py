"""Maps torch's reduction operations to the core's."""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

from shmring.dtypes import OP_CODES, OPS

_KINDS = ReduceOp.RedOpType

NAMES: dict[ReduceOp.RedOpType, str] = {
    kind: OPS[OP_CODES[name.lower()]] for name, kind in _KINDS.__members__.items() if name.lower() in OP_CODES
}
NAMES[_KINDS.PREMUL_SUM] = "premul_sum"
# By torch's hash of an operation: to read its kind takes twice as long, and to compare kinds a microsecond.
_NAMES_BY_HASH = {hash(ReduceOp(kind)): name for kind, name in NAMES.items() if name != "premul_sum"}


def reduction(options) -> ReduceOp | str:
    """The core's name of the operation in an options object; torch's own object for a premultiplied sum."""
    op = options.reduceOp
    name = _NAMES_BY_HASH.get(hash(op))
    if name is None and op.op not in NAMES:
        raise ValueError(f"{op} is not a reduction operation")
    return op if name is None else name


def name_of(op: ReduceOp | str) -> str:
    """The core's name of an operation as `reduction` returns it, or ``premul_sum``."""
    return op if isinstance(op, str) else NAMES[op.op]


def is_of_the_core(x: torch.Tensor, op: ReduceOp | str) -> bool:
    """Whether the core has this operation for this dtype; else `summand` and `finish` make it from a sum."""
    return isinstance(op, str) and not _averages_integers(x, op)


def summand(x: torch.Tensor, op: ReduceOp | str) -> tuple[torch.Tensor, str]:
    """The tensor to reduce in place of ``x``, and the core's operation."""
    if not isinstance(op, str):  # a premultiplied sum; its factor has no public accessor
        return x * op.__getstate__()[1], "sum"
    return x, "sum" if _averages_integers(x, op) else op


def finish(result: torch.Tensor, op: ReduceOp | str, size: int) -> None:
    """Turn the reduced tensor into the result."""
    if _averages_integers(result, op):
        result.copy_(result.div(size, rounding_mode="trunc"))


def _averages_integers(x: torch.Tensor, op: ReduceOp | str) -> bool:
    """Whether this is an average of integers: the core has none, and NCCL's rounds to zero."""
    return op == "avg" and not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
