"""What every reduction must give, bit for bit, in plain NumPy."""

import numpy as np

ARITHMETIC = ("sum", "prod", "avg")
FOLDS = {
    "sum": np.add,
    "prod": np.multiply,
    "avg": np.add,
    "min": lambda a, b: np.where((a <= b) | (a != a), a, b),
    "max": lambda a, b: np.where((a >= b) | (a != a), a, b),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": np.logical_and,
    "lor": np.logical_or,
}
BOOL_FOLDS = FOLDS | dict.fromkeys(("sum", "max"), np.logical_or) | dict.fromkeys(("prod", "min"), np.logical_and)


def reduce_model(sources, op):
    """Fold ``sources``, arrays of one shape and dtype, in rank order with ``op`` (a name in ``shmring.dtypes.OPS``)."""
    dtype = sources[0].dtype
    if dtype.kind == "c" and op in ("sum", "avg"):
        return reduce_model([x.view(part_of(dtype)) for x in sources], op).view(dtype)
    with np.errstate(all="ignore"):
        acc, *others = (accumulator(x, op) for x in sources)
        for x in others:
            acc = fold_of(dtype, op)(acc, x)
        if op == "avg":
            acc = acc / acc.dtype.type(len(sources))
        return with_one_nan(acc.astype(dtype)) if op in ARITHMETIC else acc.astype(dtype)


def accumulator(x, op):
    """``x`` as it is accumulated: 16-bit floats as float32, truth as truth; any byte but 0 is a true bool."""
    if x.dtype.kind == "b":
        return x.view(np.uint8) != 0
    if op in ("land", "lor"):
        return x != 0
    return x.astype(np.float32 if x.dtype.name in ("float16", "bfloat16") and op in ARITHMETIC else x.dtype)


def fold_of(dtype, op):
    """One step of the fold."""
    if dtype.kind == "c" and op == "prod":  # NumPy's own may fuse multiplications and additions
        return lambda a, b: join(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real, dtype)
    return (BOOL_FOLDS if dtype.kind == "b" else FOLDS)[op]


def join(real, imag, dtype):
    """A complex array; ``real + 1j * imag`` would spread infinities and lose signs of zeros."""
    joined = np.empty(real.shape, dtype)
    joined.real, joined.imag = real, imag
    return joined


def with_one_nan(x):
    """NaNs that arithmetic made are the one positive quiet NaN, whatever the processor made of them."""
    if x.dtype.kind in "iub":
        return x
    parts = x.view(part_of(x.dtype)) if x.dtype.kind == "c" else x
    parts[parts != parts] = np.nan
    return x


def part_of(dtype):
    """The dtype of the real part."""
    return np.dtype(f"float{4 * dtype.itemsize}")
