"""The element types and operations, by name and by number.

The numbers are positions in `DTYPES` and `OPS`. Signatures contain them and they index the kernel tables, so
``kernel/dispatch.h`` has the same order.
"""

from __future__ import annotations

from typing import NamedTuple


class DType(NamedTuple):
    """An element type: name, bytes, family (``f`` float, ``i`` signed, ``u`` unsigned, ``b`` bool, ``c`` complex)."""

    name: str
    itemsize: int
    family: str


DTYPES = (
    DType("float64", 8, "f"),
    DType("float32", 4, "f"),
    DType("float16", 2, "f"),
    DType("bfloat16", 2, "f"),
    DType("int8", 1, "i"),
    DType("int16", 2, "i"),
    DType("int32", 4, "i"),
    DType("int64", 8, "i"),
    DType("uint8", 1, "u"),
    DType("uint16", 2, "u"),
    DType("uint32", 4, "u"),
    DType("uint64", 8, "u"),
    DType("bool", 1, "b"),
    DType("complex64", 8, "c"),
    DType("complex128", 16, "c"),
)

OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor")

# Other common names of operations.
OP_ALIASES = {"mean": "avg", "product": "prod", "add": "sum", "multiply": "prod", "minimum": "min", "maximum": "max"}

DTYPE_CODES = {d.name: code for code, d in enumerate(DTYPES)}
OP_CODES = {name: code for code, name in enumerate(OPS)}
OP_CODES.update({alias: OP_CODES[name] for alias, name in OP_ALIASES.items()})

# The families that an operation is defined on. Complex numbers have no order; bit operations on floats are meaningless;
# an average of integers is not an integer.
_FAMILIES = {
    "sum": "fiubc",
    "prod": "fiubc",
    "min": "fiub",
    "max": "fiub",
    "avg": "fc",
    "band": "iub",
    "bor": "iub",
    "bxor": "iub",
    "land": "fiubc",
    "lor": "fiubc",
}


def is_defined(op: str, dtype: str) -> bool:
    """Whether operation ``op`` exists on ``dtype`` (both canonical names); ``ValueError`` for an unknown one."""
    op = OPS[op_code(op)]
    if not isinstance(dtype, str) or dtype not in DTYPE_CODES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPE_CODES)}")
    return DTYPES[DTYPE_CODES[dtype]].family in _FAMILIES[op]


def widening(op: int, dtype: int) -> int:
    """The size of a partial result (prefix), in operand sizes; arguments by their numbers.

    2 for sums, products and averages of 16-bit floats, which are float32 until they are rounded, once, at the end.
    """
    if op >= len(OPS) or dtype >= len(DTYPES):
        return 1
    rounds = DTYPES[dtype].family == "f" and DTYPES[dtype].itemsize == 2
    return 2 if rounds and OPS[op] in ("sum", "prod", "avg") else 1


def op_code(op: str) -> int:
    """The number of operation ``op``, in small letters or capitals; ``ValueError`` if there is none of that name."""
    try:
        return OP_CODES[op if op in OP_CODES else op.lower()]
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"unknown op {op!r}; known: {', '.join(OPS)}") from None
