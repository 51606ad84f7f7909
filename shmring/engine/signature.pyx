"""Signatures as text, for a `MismatchError` or a `CollectiveTimeoutError`; and the largest group they allow."""

from shmring.engine.kinds cimport KIND_ALL_REDUCE_MANY, KIND_BARRIER, KIND_SEND

from shmring.dtypes import DTYPES, OPS
from shmring.engine.kinds import KINDS


def check_size(size):
    """Raise ``ValueError`` for a number of ranks that no communicator can have."""
    if size < 1:
        raise ValueError(f"size={size} must be at least 1")
    if size > MAX_RANKS:    # a signature has too few bits for the rank
        raise ValueError(f"size={size}: a communicator has at most {MAX_RANKS} ranks")


def explain(signature: int) -> str:
    """The call a signature stands for, e.g. ``all_reduce(sum, float32 x 1024)``."""
    kind = signature >> 58 & ~BY_COUNTS
    op = signature >> 54 & 15
    dtype = signature >> 50 & 15
    root = root_of(signature)
    count = signature & MAX_COUNT
    if kind == 0 or kind >= len(KINDS):
        return "nothing"
    if kind == KIND_BARRIER:
        return "barrier()"
    if kind >= KIND_SEND:
        parts = [f"{'dst' if kind == KIND_SEND else 'src'}={root}"] if root >= 0 else []
        parts += [f"tag={count - 1}"] if count else []
        return f"{KINDS[kind].name}({', '.join(parts)})"
    parts = [OPS[op]] if op < len(OPS) else []
    what = DTYPES[dtype].name if dtype < len(DTYPES) else "bytes"
    if kind >= KIND_ALL_REDUCE_MANY:
        layout = signature >> 21 & (1 << 29) - 1
        parts += [f"{what} x {count & (1 << 21) - 1}", f"layout {layout:x}"]
        return f"{KINDS[kind].name}({', '.join(parts)})"
    if not signature >> 58 & BY_COUNTS:
        parts.append(f"{what} x {count}")
    elif op == NO_OP and KINDS[kind].takes_op:
        parts.append(f"{what}, function and count of digest {count:09x}")
    else:
        parts.append(f"{what}, counts of digest {count:09x}")
    if root >= 0:
        parts.append(f"root={root}")
    return f"{KINDS[kind].name}({', '.join(parts)})"
