"""Folds carried on from a stored prefix have the same bits, for every operation and dtype of which that is said."""

import ml_dtypes
import numpy as np
import pytest

from shmring.dtypes import DTYPE_CODES, DTYPES, OP_CODES, OPS, carries, is_defined
from shmring.reduce import kernels, reduce_arrays

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 3e38)
DEFINED = [(op, d.name) for d in DTYPES for op in OPS if is_defined(op, d.name)]
CARRIED = [(op, name) for op, name in DEFINED if carries(OP_CODES[op], DTYPE_CODES[name])]


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def operands(name, count, seed):
    """Seven of them: of any bits for integers, of all magnitudes and with what is special about them for floats."""
    rng, dtype = np.random.default_rng(seed), dtype_of(name)
    if dtype.kind in "iub":
        return [rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype) for _ in range(7)]

    def parts():
        x = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 5, count)
        x[:: count // 50] = rng.choice(SPECIAL, len(x[:: count // 50]))
        return x

    with np.errstate(over="ignore", invalid="ignore"):
        found = [parts() + 1j * parts() if dtype.kind == "c" else parts() for _ in range(7)]
        return [x.astype(dtype) for x in found]


@pytest.mark.parametrize(("op", "name"), CARRIED)
def test_a_fold_carried_on_from_a_stored_prefix_has_the_bits_of_one_that_was_not(op, name, seed):
    x = operands(name, 1003, seed)
    for kernel in kernels()["runnable"]:
        whole = reduce_arrays(x, op, kernel=kernel).tobytes()
        for stations in ((1, 7), (3, 7), (6, 7), (2, 3, 7), (1, 2, 3, 4, 5, 6, 7)):
            prefix, begin = [], 0
            for end in stations:
                prefix = [reduce_arrays([*prefix, *x[begin:end]], op, kernel=kernel)]
                begin = end
            assert prefix[0].tobytes() == whole, (kernel, stations)


def test_what_is_rounded_or_divided_at_its_end_is_not_carried():
    left_out = set(DEFINED) - set(CARRIED)
    rounded = {(op, name) for op in ("sum", "prod") for name in ("float16", "bfloat16")}
    assert left_out == rounded | {("avg", d.name) for d in DTYPES if is_defined("avg", d.name)}


@pytest.mark.parametrize(("op", "name"), sorted(set(DEFINED) - set(CARRIED)))
def test_what_is_not_carried_would_give_other_bits(op, name, seed):
    x = operands(name, 1003, seed)
    assert reduce_arrays([reduce_arrays(x[:3], op), *x[3:]], op).tobytes() != reduce_arrays(x, op).tobytes()


def test_what_is_no_operation_or_dtype_is_not_carried():
    assert not carries(15, 0)
    assert not carries(0, 15)
