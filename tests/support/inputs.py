"""Inputs for collectives: every rank can make every other rank's, so each checks its own results bit for bit."""

import random

import numpy as np

from shmring.dtypes import DTYPES

try:
    import ml_dtypes  # noqa: F401  (its dtypes have names then)
except ModuleNotFoundError:  # in an interpreter that has an MPI for the tests
    NUMPY_DTYPES = {d.name: np.dtype(d.name) for d in DTYPES if not d.is_extension}
else:
    NUMPY_DTYPES = {d.name: np.dtype(d.name) for d in DTYPES}

POOL = 65_537  # elements of a dtype that inputs are cut from; prime, so that nothing repeats in step with a slot
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, 3e38)
LAYOUTS = ("strided", "fortran", "reversed", "unaligned")


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


_pools: dict[tuple, np.ndarray] = {}


def pool_of(dtype, fill="usual"):
    """Values of a dtype (its name) to cut inputs from; ``special``: infinities, NaNs, denormals, both zeros; ``small``:
    whole numbers of which sums and products are exact in any order."""
    if (dtype, fill) not in _pools:
        number = list(NUMPY_DTYPES).index(dtype)
        if fill == "usual":
            _pools[dtype, fill] = values(NUMPY_DTYPES[dtype], POOL, number)
        elif fill == "small":
            _pools[dtype, fill] = np.random.default_rng(number).integers(0, 4, POOL).astype(NUMPY_DTYPES[dtype])
        else:
            with np.errstate(over="ignore"):
                few = np.array(SPECIAL).astype(NUMPY_DTYPES[dtype])
            _pools[dtype, fill] = few[np.random.default_rng(number).integers(0, len(few), POOL)]
    return _pools[dtype, fill]


def cut(dtype, shape, *key, fill="usual"):
    """An array of values of a dtype (its name): the same numbers for the same key in every process."""
    pool = pool_of(dtype, fill)
    start = random.Random(repr(key)).randrange(POOL)
    count = int(np.prod(shape, dtype=np.int64))
    return np.resize(np.concatenate([pool[start:], pool[:start]]), count).reshape(shape)


def lay_out(x, layout):
    """A copy of ``x`` in one of `LAYOUTS`, or C-contiguous."""
    if layout == "strided":
        view = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2] if x.ndim else np.zeros((), x.dtype)
    elif layout == "reversed":
        view = np.empty_like(x)[::-1] if x.ndim else np.empty_like(x)
    elif layout == "unaligned":
        view = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    else:
        view = np.empty_like(x, order="F" if layout == "fortran" else "C")
    view[...] = x
    return view


def same_bits(a, b):
    """Whether two arrays agree in shape, dtype and every bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
