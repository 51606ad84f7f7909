"""Element types in words, for those that have no number of their own: structures, dates, strings of fixed size, float8.

A description is text that both sides read alike, without pickle: NumPy's own (that of ``.npy`` files), or the name of a
type of ml_dtypes.
"""

from __future__ import annotations

import ast
import functools
import warnings

import numpy as np

from shmring.dtypes import DTYPE_CODES, DTYPES
from shmring.errors import SegmentError

_EXTENSION = "ml_dtypes:"


@functools.lru_cache(maxsize=256)
def describe(dtype: np.dtype) -> bytes:
    """The description of a dtype; ``TypeError`` if it has none, or holds Python objects."""
    if dtype.hasobject:
        raise TypeError(f"{dtype} holds Python objects, which are addresses: send them by send_object()")
    if dtype.isbuiltin == 2:
        name = f"{_EXTENSION}{dtype.type.__name__}"
        if dtype.type.__module__.partition(".")[0] == "ml_dtypes" and dtype_of(name.encode()) == dtype:
            return name.encode()
        raise TypeError(f"{dtype} is a type that only {dtype.type.__module__} knows: send a view of it, such as uint8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, which is lost
        text = repr(np.lib.format.dtype_to_descr(dtype)).encode()
    if dtype_of(text) != dtype:
        raise TypeError(f"{dtype} cannot be put into words: send a view of it, such as uint8")
    return text


@functools.lru_cache(maxsize=256)
def dtype_of(description: bytes) -> np.dtype:
    """The dtype that was described; `SegmentError` if that is no description."""
    text = description.decode("latin-1")
    try:
        if text.startswith(_EXTENSION):
            return _extension(text[len(_EXTENSION) :])
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError) as error:
        raise SegmentError(f"{text[:80]!r} describes no element type") from error
    if dtype.hasobject:
        raise SegmentError(f"{text[:80]!r} holds Python objects")
    return dtype


def numbered(code: int) -> np.dtype:
    """The dtype of a position in `dtypes.DTYPES`; bfloat16 needs ml_dtypes."""
    name = DTYPES[code].name
    return _extension(name) if name == "bfloat16" else np.dtype(name)


def number_of(dtype: np.dtype) -> int | None:
    """The position in `dtypes.DTYPES` of a dtype in this machine's byte order; None if it has none."""
    return DTYPE_CODES.get(dtype.name) if dtype.isnative and dtype.names is None and dtype.subdtype is None else None


def _extension(name: str) -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"NumPy knows {name}, of which an array has come, only with ml_dtypes installed") from None
    kind = getattr(ml_dtypes, name, None)
    if not isinstance(kind, type):
        raise SegmentError(f"the ml_dtypes installed here has no type {name!r}")
    return np.dtype(kind)
