"""The kinds of calls: one row each, by code, which every check, plan, report and test reads.

C has the same rows in ``collectives/engine/kinds.h``, which ``tools/enums.py`` writes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class Blocks(IntEnum):
    """How many blocks an array has beside the first one; negative: one for each rank."""

    EACH_RANK = -1
    ONE = 0

    def among(self, size: int) -> int:
        """The number of blocks, among so many ranks."""
        return size if self < 0 else self + 1


_ONE, _EACH = Blocks.ONE, Blocks.EACH_RANK


class Kind(NamedTuple):
    """One kind of call.

    Attributes
    ----------
    code : int
        In signatures and in C.
    name : str
        The name of the method.
    inputs, outputs : {"no_rank", "root", "all"}
        The ranks that contribute ``x``, and those that get ``out``.
    reads : {"nothing", "root", "all", "before", "through"}
        Whose inputs reach the output of a rank: those of the ranks before it, those and its own (through it), ...
    blocks_in, blocks_out : Blocks
        How many blocks ``x`` and ``out`` have.
    takes_counts : bool
        Whether the blocks may differ in size.
    takes_op : bool
        Whether it reduces.
    shared_inputs, shared_outputs : {"no_rank", "root", "all"}
        On shared arrays: the ranks whose ``x`` is loaded, and those whose ``out`` is stored, by others.
    """

    code: int
    name: str
    inputs: str = "no_rank"
    outputs: str = "no_rank"
    reads: str = "nothing"
    blocks_in: Blocks = _ONE
    blocks_out: Blocks = _ONE
    takes_counts: bool = False
    takes_op: bool = False
    shared_inputs: str = "no_rank"
    shared_outputs: str = "no_rank"

    @property
    def has_root(self) -> bool:
        """Whether one rank is different from the others."""
        return "root" in (self.inputs, self.outputs)

    @property
    def has_blocks(self) -> bool:
        """Whether an array has more than one block."""
        return bool(self.blocks_in or self.blocks_out)

    @property
    def is_eager(self) -> bool:
        """Whether small calls are eager exchanges: the ranks that a rank reads must follow one another."""
        return self.reads in ("root", "all", "before", "through")

    def most_blocks(self, size: int) -> int:
        """The number of blocks of its larger array, among so many ranks."""
        return max(self.blocks_in.among(size), self.blocks_out.among(size))


_ROWS: tuple[tuple[Any, ...], ...] = (
    # name             inputs     outputs    reads      blocks in, out  counts  op     shared inputs, outputs
    ("barrier",        "no_rank", "no_rank", "all"),
    ("all_reduce",     "all",     "all",     "all",     _ONE,  _ONE,  False, True,  "all",     "all"),
    ("reduce",         "all",     "root",    "all",     _ONE,  _ONE,  False, True,  "all",     "root"),
    ("broadcast",      "root",    "all",     "root",    _ONE,  _ONE,  False, False, "root",    "no_rank"),
    ("all_gather",     "all",     "all",     "all",     _ONE,  _EACH, True,  False, "all",     "no_rank"),
    ("reduce_scatter", "all",     "all",     "all",     _EACH, _ONE,  True,  True,  "all",     "no_rank"),
    ("gather",         "all",     "root",    "all",     _ONE,  _EACH, True,  False, "no_rank", "root"),
    ("scatter",        "root",    "all",     "root",    _EACH, _ONE,  True,  False, "root",    "no_rank"),
    ("all_to_all",     "all",     "all",     "all",     _EACH, _EACH, True,  False, "all",     "no_rank"),
    ("scan",           "all",     "all",     "through", _ONE,  _ONE,  False, True),
    ("exscan",         "all",     "all",     "before",  _ONE,  _ONE,  False, True),
    ("all_reduce_many", "all",    "all",     "all",     _ONE,  _ONE,  False, True),
    # Of messages: the root is the other rank.
    ("send",),
    ("recv",),
    ("probe",),
)  # fmt: skip

# By code; none has the code 0.
KINDS = (None, *(Kind(code, *row) for code, row in enumerate(_ROWS, 1)))
# The collectives, by name; those on one array have methods in the C table.
COLLECTIVES = {kind.name: kind for kind in KINDS[1:] if kind is not None and kind.reads != "nothing"}
ON_ARRAYS = {name: kind for name, kind in COLLECTIVES.items() if not name.endswith("_many")}
