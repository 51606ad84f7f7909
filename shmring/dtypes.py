"""The element types and operations: one row each, which everything else reads.

Their numbers are positions in `DTYPES` and `OPS`. Signatures contain them and they index the kernel tables; C has them
in the same order (``tools/enums.py`` writes it). "To add ..." in CONTRIBUTING.md has what a new row needs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shmring.typing import OpName

# Codes of DLPack, with which the bytes of an element make a type.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6


class DType(NamedTuple):
    """An element type.

    Attributes
    ----------
    name : str
        NumPy's, or that of ml_dtypes.
    itemsize : int
        In bytes.
    family : str
        ``f`` float, ``i`` signed, ``u`` unsigned, ``b`` bool, ``c`` complex.
    dlpack : int
        Its code there.
    xla : int
        Its number among XLA's ``PrimitiveType``.
    mpi : str
        The name of MPI's datatype; empty: MPI does not have it, or not these operations on it.
    accumulates_in : str
        The type in which sums, products and averages are made, to be rounded once; empty: in its own.
    is_extension : bool
        Whether it is of ml_dtypes, and unknown to NumPy itself.
    """

    name: str
    itemsize: int
    family: str
    dlpack: int
    xla: int
    mpi: str = ""
    accumulates_in: str = ""
    is_extension: bool = False


DTYPES = (
    DType("float64", 8, "f", _FLOAT, 12, "DOUBLE"),
    DType("float32", 4, "f", _FLOAT, 11, "FLOAT"),
    DType("float16", 2, "f", _FLOAT, 10, accumulates_in="float32"),
    DType("bfloat16", 2, "f", _BFLOAT, 16, accumulates_in="float32", is_extension=True),
    DType("int8", 1, "i", _INT, 2, "INT8_T"),
    DType("int16", 2, "i", _INT, 3, "INT16_T"),
    DType("int32", 4, "i", _INT, 4, "INT32_T"),
    DType("int64", 8, "i", _INT, 5, "INT64_T"),
    DType("uint8", 1, "u", _UINT, 6, "UINT8_T"),
    DType("uint16", 2, "u", _UINT, 7, "UINT16_T"),
    DType("uint32", 4, "u", _UINT, 8, "UINT32_T"),
    DType("uint64", 8, "u", _UINT, 9, "UINT64_T"),
    DType("bool", 1, "b", _BOOL, 1),
    DType("complex64", 8, "c", _COMPLEX, 15, "C_FLOAT_COMPLEX"),
    DType("complex128", 16, "c", _COMPLEX, 18, "C_DOUBLE_COMPLEX"),
    DType("float8_e4m3fn", 1, "f", 10, 20, accumulates_in="float32", is_extension=True),
    DType("float8_e5m2", 1, "f", 12, 19, accumulates_in="float32", is_extension=True),
)


class Op(NamedTuple):
    """An operation.

    Attributes
    ----------
    name : str
        Its name.
    families : str
        The families of element types that it is defined on. Complex numbers have no order; bit operations on floats are
        meaningless; an average of integers is not an integer.
    aliases : tuple of str
        Other common names.
    accumulates : bool
        Whether partial results are of the type that the elements accumulate in.
    is_linear : bool
        Whether the result is a linear function of the operands, so that it has a derivative.
    on_objects : callable, optional
        The operation on two Python objects, and another name of it; None: there is none.
    ufunc : str
        NumPy's function whose bits a kernel reproduces ...
    ufunc_families : str
        ... on these families. Not floats that accumulate in another type (a ufunc rounds after every step); nor minimum
        and maximum of floats (the sign of a zero result is unspecified), nor products of complex numbers (NumPy may
        fuse). NaNs count as equal, whatever their payload.
    mpi : str
        The name of MPI's operation; empty: it has none, or leaves a single operand as it is.
    is_logical : bool
        Whether it takes the operands for true or false, and so returns True or False for a single object, too.
    """

    name: OpName
    families: str
    aliases: tuple[str, ...] = ()
    accumulates: bool = False
    is_linear: bool = False
    on_objects: Callable[[Any, Any], Any] | None = None
    ufunc: str = ""
    ufunc_families: str = ""
    mpi: str = ""
    is_logical: bool = False


def _both(a: Any, b: Any) -> bool:
    return bool(a) and bool(b)


def _either(a: Any, b: Any) -> bool:
    return bool(a) or bool(b)


OP_ROWS = (
    Op("sum", "fiubc", ("add",), True, True, operator.add, "add", "fiubc", "SUM"),
    Op("prod", "fiubc", ("product", "multiply"), True, False, operator.mul, "multiply", "fiub", "PROD"),
    Op("min", "fiub", ("minimum",), on_objects=min, ufunc="minimum", ufunc_families="iub", mpi="MIN"),
    Op("max", "fiub", ("maximum",), on_objects=max, ufunc="maximum", ufunc_families="iub", mpi="MAX"),
    Op("avg", "fc", ("mean",), accumulates=True, is_linear=True),
    Op("band", "iub", on_objects=operator.and_, ufunc="bitwise_and", ufunc_families="iub", mpi="BAND"),
    Op("bor", "iub", on_objects=operator.or_, ufunc="bitwise_or", ufunc_families="iub", mpi="BOR"),
    Op("bxor", "iub", on_objects=operator.xor, ufunc="bitwise_xor", ufunc_families="iub", mpi="BXOR"),
    Op("land", "fiubc", on_objects=_both, ufunc="logical_and", ufunc_families="b", is_logical=True),
    Op("lor", "fiubc", on_objects=_either, ufunc="logical_or", ufunc_families="b", is_logical=True),
    Op("absmax", "f"),
)

OPS = tuple(op.name for op in OP_ROWS)
LINEAR_OPS = tuple(op.name for op in OP_ROWS if op.is_linear)
OP_ALIASES = {alias: op.name for op in OP_ROWS for alias in op.aliases}

DTYPE_CODES = {d.name: code for code, d in enumerate(DTYPES)}
OP_CODES: dict[str, int] = {name: code for code, name in enumerate(OPS)}
OP_CODES.update({alias: OP_CODES[name] for alias, name in OP_ALIASES.items()})


def is_defined(op: str, dtype: str) -> bool:
    """Whether operation ``op`` exists on ``dtype`` (both canonical names); ``ValueError`` for an unknown one."""
    row = OP_ROWS[op_code(op)]
    if not isinstance(dtype, str) or dtype not in DTYPE_CODES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPE_CODES)}")
    return DTYPES[DTYPE_CODES[dtype]].family in row.families


def widening(op: int, dtype: int) -> int:
    """The size of a partial result (prefix), in operand sizes; arguments by their numbers.

    2 or 4 for sums, products and averages of floats of 16 or 8 bits, which are float32 until they are rounded, once, at
    the end.
    """
    if not (0 <= op < len(OPS) and 0 <= dtype < len(DTYPES) and OP_ROWS[op].accumulates):
        return 1
    of = DTYPES[dtype]
    return DTYPES[DTYPE_CODES[of.accumulates_in]].itemsize // of.itemsize if of.accumulates_in else 1


def op_code(op: str) -> int:
    """The number of operation ``op``, in small letters or capitals; ``ValueError`` if there is none of that name."""
    try:
        return OP_CODES[op if op in OP_CODES else op.lower()]
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"unknown op {op!r}; known: {', '.join(OPS)}") from None
