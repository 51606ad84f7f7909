"""Dtypes as text, for those without a code in `shmring.dtypes`: structures, dates, strings of fixed size, other
float8.

A description is text that both sides parse alike, without pickle: NumPy's own (that of ``.npy`` files), or the name of
an ml_dtypes type.
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
    """The description of a dtype; ``TypeError`` if it has none, or no array has it, or it holds Python objects."""
    if dtype.hasobject:
        raise TypeError(f"{dtype} holds Python objects, which are addresses: send them by send_object()")
    if not _is_of_arrays(dtype):
        raise TypeError(f"{dtype} is not the dtype of any array: give a string its length, and an array a field's name")
    if dtype.isbuiltin == 2:
        name = f"{_EXTENSION}{dtype.type.__name__}"
        if dtype.type.__module__.partition(".")[0] == "ml_dtypes" and dtype_of(name.encode()) == dtype:
            return name.encode()
        raise TypeError(
            f"{dtype} is defined by {dtype.type.__module__}, which a receiver may not have: send a view, such as uint8"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, which is dropped
        text = repr(np.lib.format.dtype_to_descr(dtype)).encode()
    if dtype_of(text) != dtype:
        raise TypeError(f"{dtype} has no description that restores it: send a view of it, such as uint8")
    return text


@functools.lru_cache(maxsize=256)
def dtype_of(description: bytes) -> np.dtype:
    """The dtype of a description; `SegmentError` if the text describes none that an array of plain data can have."""
    text = description.decode("latin-1")
    if text.startswith(_EXTENSION):
        return _extension(text[len(_EXTENSION) :])
    try:
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(text))
    except Exception as error:  # a peer may have written anything, which the parsers refuse in many ways
        raise SegmentError(f"{text[:80]!r} is not the description of a dtype") from error
    if dtype.hasobject or not _is_of_arrays(dtype):
        raise SegmentError(f"{text[:80]!r} describes a dtype that no array of plain data has")
    return dtype


def _is_of_arrays(dtype: np.dtype) -> bool:
    # NumPy makes longer shapes of subarrays, and longer elements of strings of no length.
    return dtype.subdtype is None and not (dtype.kind in "SU" and dtype.itemsize == 0)


def dtype_with_code(code: int) -> np.dtype:
    """The dtype of a position in `dtypes.DTYPES`; an extension needs ml_dtypes."""
    known = DTYPES[code]
    return _extension(known.name) if known.is_extension else np.dtype(known.name)


def code_of_dtype(dtype: np.dtype) -> int | None:
    """The position in `dtypes.DTYPES` of a dtype in native byte order; None if it has none."""
    return DTYPE_CODES.get(dtype.name) if dtype.isnative and dtype.names is None and dtype.subdtype is None else None


def _extension(name: str) -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"the array received is of {name}, which needs ml_dtypes: install it") from None
    kind = getattr(ml_dtypes, name, None)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise SegmentError(f"the installed ml_dtypes has no type {name!r}")
    return np.dtype(kind)
