"""The kinds of calls and what each needs, as Python reads them: the table of ``engine/kinds.h``."""

from typing import NamedTuple

_RANKS = {OF_NO_RANK: "none", OF_ROOT: "root", OF_ALL: "all"}


class Kind(NamedTuple):
    """One kind of call.

    Attributes
    ----------
    code : int
        In signatures and in C.
    name : str
        Of the method.
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
