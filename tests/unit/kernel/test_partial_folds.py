"""Folds made in parts, each carried on from a stored prefix, have the bits of whole ones: all operations and dtypes."""

import ml_dtypes  # noqa: F401  (its dtypes have names then)
import numpy as np
import pytest
from support import compiled, oracle

from shmring.core.kernel.reduce import STORES, kernels
from shmring.dtypes import DTYPE_CODES, DTYPES, OP_CODES, OPS, is_defined, widening

NO_OP, OPAQUE = 15, -1

hooks = compiled.load("array_hooks")
reduce_arrays, reduce_part = hooks.reduce_arrays, hooks.reduce_part

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 3e38)
DEFINED = [(op, d.name) for d in DTYPES for op in OPS if is_defined(op, d.name)]


def operands(name, count, seed):
    """Seven of them: of any bits for integers, of all magnitudes and with what is special about them for floats."""
    rng, dtype = np.random.default_rng(seed), np.dtype(name)
    if dtype.kind in "iub":
        return [rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype) for _ in range(7)]

    def parts():
        x = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 5, count)
        some = slice(None, None, max(count // 50, 1))
        x[some] = rng.choice(SPECIAL, len(x[some]))
        return x

    with np.errstate(over="ignore", invalid="ignore"):
        found = [parts() + 1j * parts() if dtype.kind == "c" else parts() for _ in range(7)]
        return [x.astype(dtype) for x in found]


@pytest.mark.sample(50)
@pytest.mark.parametrize(("op", "name"), DEFINED)
def test_a_fold_made_in_parts_has_the_bits_of_one_that_was_not(op, name, seed):
    rng = np.random.default_rng(seed)
    for count in (1003, int(rng.integers(1, 200))):
        x = operands(name, count, seed)
        wholes = {kernel: reduce_arrays(x, op, kernel=kernel).tobytes() for kernel in kernels()["runnable"]}
        assert len(set(wholes.values())) == 1
        for splits in ((1, 7), (3, 7), (6, 7), (2, 3, 7), (1, 2, 3, 4, 5, 6, 7)):
            for stores in STORES:
                prefix, begin = None, 0
                for end in splits:
                    # Ranks may have chosen different kernels: prefixes are the same for all.
                    kernel = str(rng.choice(list(wholes)))
                    form = {"prefix": prefix, "total": 7 if end == 7 else None}
                    prefix = reduce_part(x[begin:end], op, kernel=kernel, stores=stores, **form)
                    begin = end
                assert prefix.dtype == x[0].dtype
                assert {prefix.tobytes()} == set(wholes.values()), (count, splits, stores)


@pytest.mark.parametrize(("op", "name"), DEFINED)
def test_the_same_prefix_is_stored_by_all_kernels_but_for_what_a_nan_is(op, name, seed):
    x = operands(name, 200, seed)
    found = [reduce_part(x[:3], op, kernel=kernel) for kernel in kernels()["runnable"]]
    if DTYPES[DTYPE_CODES[name]].is_extension:
        found = [prefix.astype(np.float32) for prefix in found]  # whose NaNs NumPy knows
    for prefix in found[1:]:
        if prefix.dtype.kind in "fc":
            np.testing.assert_array_equal(prefix, found[0])
        else:
            assert prefix.tobytes() == found[0].tobytes()


def test_prefixes_are_float32_where_narrow_floats_are_summed_and_nowhere_else():
    wide = {(op, name) for op, name in DEFINED if widening(OP_CODES[op], DTYPE_CODES[name]) > 1}
    assert wide == {(op, name) for op in ("sum", "prod", "avg") for name in oracle.NARROW}
    assert all(widening(OP_CODES["sum"], DTYPE_CODES[name]) * np.dtype(name).itemsize == 4 for name in oracle.NARROW)
    for op, name in DEFINED:
        prefix = reduce_part(operands(name, 60, 1), op)
        assert prefix.itemsize == widening(OP_CODES[op], DTYPE_CODES[name]) * np.dtype(name).itemsize


@pytest.mark.parametrize(("op", "name"), [("sum", "bfloat16"), ("prod", "float16"), ("avg", "float32")])
def test_what_is_rounded_or_divided_too_early_would_give_other_bits(op, name, seed):
    x = operands(name, 1003, seed)
    assert reduce_arrays([reduce_arrays(x[:3], op), *x[3:]], op).tobytes() != reduce_arrays(x, op).tobytes()


def test_what_is_no_operation_or_dtype_has_prefixes_like_its_operands():
    assert widening(NO_OP, 0) == widening(0, OPAQUE) == 1
