"""The kinds of calls, and the arguments of each, for Python: the table of ``engine/kinds.h``. And signatures as
text, for a `MismatchError` or a `CollectiveTimeoutError`.
"""

from typing import NamedTuple

from shmring.engine.signature cimport BY_COUNTS, MAX_COUNT, MAX_RANKS, NO_OP, root_of

from shmring.dtypes import DTYPES, OPS

_RANKS = {OF_NO_RANK: "none", OF_ROOT: "root", OF_ALL: "all"}


class Kind(NamedTuple):
    """One kind of call.

    Attributes
    ----------
    code : int
        In signatures and in C.
    name : str
        The name of the method.
    inputs, outputs : {"none", "root", "all"}
        The ranks that contribute ``x``, and those that get ``out``.
    blocks_in, blocks_out : bool
        Whether ``x`` has one block for each rank, and ``out`` one from each.
    takes_counts : bool
        Whether the blocks may differ in size.
    takes_op : bool
        Whether it reduces.
    """

    code: int
    name: str
    inputs: str
    outputs: str
    blocks_in: bool
    blocks_out: bool
    takes_counts: bool
    takes_op: bool

    @property
    def has_root(self):
        """Whether one rank is different from the others."""
        return "root" in (self.inputs, self.outputs)


def _kind(int code):
    cdef const shmring_kind *k = &KIND[code]
    return Kind(code, k.name.decode(), _RANKS[k.inputs], _RANKS[k.outputs], bool(k.blocks_in), bool(k.blocks_out),
                bool(k.takes_counts), bool(k.takes_op))


# By code; none has the code 0.
KINDS = (None, *[_kind(code) for code in range(1, KIND_END)])
# The collectives on arrays, by name.
COLLECTIVES = {kind.name: kind for kind in KINDS[1:KIND_ALL_REDUCE_MANY]}


# ---- signatures ------------------------------------------------------------------------------------------------------

def check_size(size):
    """Raise ``ValueError`` for a number of ranks that no communicator can have."""
    if size < 1:
        raise ValueError(f"size={size} must be at least 1")
    if size > MAX_RANKS:    # a signature has too few bits for the rank
        raise ValueError(f"size={size}: a communicator has at most {MAX_RANKS} ranks")


def kind_and_root(signature: int):
    """The `Kind` of a signature, None if it has none, and the root or peer, -1 if it has none."""
    kind = signature >> 58 & ~BY_COUNTS
    return KINDS[kind] if kind < len(KINDS) else None, root_of(signature)


def explain(signature: int) -> str:
    """The call a signature stands for, e.g. ``all_reduce(sum, float32 x 1024)``."""
    kind, root = kind_and_root(signature)
    op = signature >> 54 & 15
    dtype = signature >> 50 & 15
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
    if kind.code >= KIND_ALL_REDUCE_MANY:
        layout = signature >> 21 & (1 << 29) - 1
        parts += [f"{what} x {count & (1 << 21) - 1}", f"layout {layout:x}"]
        return f"{kind.name}({', '.join(parts)})"
    if not signature >> 58 & BY_COUNTS:
        parts.append(f"{what} x {count}")
    elif op == NO_OP and kind.takes_op:
        parts.append(f"{what}, function and count of digest {count:09x}")
    else:
        parts.append(f"{what}, counts of digest {count:09x}")
    if root >= 0:
        parts.append(f"root={root}")
    return f"{kind.name}({', '.join(parts)})"
