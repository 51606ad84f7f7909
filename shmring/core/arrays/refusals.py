"""The errors of arguments that are no usable arrays; each names the type, dtype and shape of the argument."""

from __future__ import annotations

import sys
from typing import Any

from shmring.dtypes import DTYPE_CODES


def name_of(x: Any) -> str:
    """The type of ``x``, and its dtype and shape if it has any."""
    dtype = f" of dtype {x.dtype}" if hasattr(x, "dtype") else ""
    shape = f" and shape {tuple(x.shape)}" if dtype and hasattr(x, "shape") else ""
    return f"{type(x).__module__}.{type(x).__qualname__}{dtype}{shape}".removeprefix("builtins.")


def refuse_masked(x: Any) -> None:
    """Raise for a masked array of NumPy, whose mask would be lost. Does not import `numpy.ma`."""
    kind = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)  # None also while another thread imports it
    if kind is not None and isinstance(x, kind):
        raise TypeError(f"{name_of(x)} is masked: pass x.data to ignore the mask, or x.filled(value)")


def not_an_array(x: Any) -> TypeError:
    """The error for an object with neither the buffer protocol nor DLPack."""
    return TypeError(
        f"{name_of(x)} is not an array: pass np.asarray(x, dtype=...), or an object with the buffer protocol or DLPack"
        "; other objects are sent by the calls for objects: send_object, broadcast_object, ..."
    )


def unknown_dtype(x: Any, dtype: Any, opaque: bool) -> TypeError:
    """The error for elements that cannot be reduced or, if ``opaque``, not even moved."""
    if opaque:
        return TypeError(f"{name_of(x)}: elements of dtype {dtype} cannot be moved as plain bytes")
    return TypeError(f"{name_of(x)}: dtype {dtype} is not one of {', '.join(DTYPE_CODES)}; convert it first")
