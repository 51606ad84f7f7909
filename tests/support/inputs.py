"""Inputs for collectives: every rank can make every other rank's, so each checks its own results bit for bit."""

import ml_dtypes
import numpy as np

from shmring.dtypes import DTYPES

NUMPY_DTYPES = {d.name: np.dtype(ml_dtypes.bfloat16 if d.name == "bfloat16" else d.name) for d in DTYPES}


def values(dtype, shape, *key):
    """Reproducible values of a dtype: mixed signs and magnitudes, zeros among them, no NaN."""
    rng = np.random.default_rng(key)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-4, 5, shape)) * (rng.random(shape) > 0.05)
    if dtype.kind == "c":
        return (x + 1j * rng.standard_normal(shape)).astype(dtype)
    return x.astype(dtype)


def same_bits(a, b):
    """Whether two arrays agree in shape, dtype and every bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
