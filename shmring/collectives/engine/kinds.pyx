"""Signatures as text, for a `MismatchError` or a `CollectiveTimeoutError`, and what they allow."""

from shmring.collectives.engine.signature cimport (
    BUNDLE_BITS, BY_COUNTS, DTYPE_AT, DTYPE_MASK, KIND_AT, MAX_COUNT, MAX_RANKS, NO_OP, OP_AT, root_of,
)

from shmring.dtypes import DTYPES, OPS
from shmring.collectives.plan.kinds import KINDS


def check_size(size):
    """Raise ``ValueError`` for a number of ranks that no communicator can have."""
    if size < 1:
        raise ValueError(f"size={size} must be at least 1")
    if size > MAX_RANKS:    # a signature has too few bits for the rank
        raise ValueError(f"size={size}: a communicator has at most {MAX_RANKS} ranks")


def kind_and_root(signature: int):
    """The `Kind` of a signature, None if it has none, and the root or peer, -1 if it has none."""
    kind = signature >> KIND_AT & ~BY_COUNTS
    return KINDS[kind] if kind < len(KINDS) else None, root_of(signature)


def explain(signature: int) -> str:
    """The call a signature stands for, e.g. ``all_reduce(sum, float32 x 1024)``."""
    kind, root = kind_and_root(signature)
    op = signature >> OP_AT & NO_OP
    dtype = signature >> DTYPE_AT & DTYPE_MASK
    count = signature & MAX_COUNT
    if kind is None:
        return "nothing"
    if kind.code == KIND_BARRIER:
        return "barrier()"
    if kind.code >= KIND_SEND:
        parts = [f"{'dst' if kind.code == KIND_SEND else 'src'}={root}"] if root >= 0 else []
        parts += [f"tag={count - 1}"] if count else []
        return f"{kind.name}({', '.join(parts)})"
    parts = [OPS[op]] if op < len(OPS) else []
    what = DTYPES[dtype].name if dtype < len(DTYPES) else "bytes"
    if kind.code == KIND_ALL_REDUCE_MANY:
        layout = signature >> BUNDLE_BITS & (1 << DTYPE_AT - BUNDLE_BITS) - 1
        parts += [f"{what} x {count & (1 << BUNDLE_BITS) - 1}", f"layout {layout:x}"]
        return f"{kind.name}({', '.join(parts)})"
    if not signature >> KIND_AT & BY_COUNTS:
        parts.append(f"{what} x {count}")
    elif op == NO_OP and kind.takes_op:
        parts.append(f"{what}, function and count of digest {count:09x}")
    else:
        parts.append(f"{what}, counts of digest {count:09x}")
    if root >= 0:
        parts.append(f"root={root}")
    return f"{kind.name}({', '.join(parts)})"
