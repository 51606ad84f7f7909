"""Names and numbers of dtypes and operations, in Python and in C."""

import numpy as np
import pytest

from shmring import dtypes
from shmring.kernel import reduce


def test_item_sizes_are_those_of_numpy():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for d in dtypes.DTYPES:
        numpy_dtype = np.dtype(ml_dtypes.bfloat16 if d.name == "bfloat16" else d.name)
        assert (numpy_dtype.name, numpy_dtype.itemsize) == (d.name, d.itemsize)


@pytest.mark.parametrize("known", dtypes.DTYPES, ids=lambda d: d.name)
def test_a_kernel_exists_exactly_where_the_operation_is_defined_in_every_instruction_set(known):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.ones(3, ml_dtypes.bfloat16 if known.name == "bfloat16" else known.name)
    for kernel in reduce.kernels()["runnable"]:
        for op in dtypes.OPS:
            if dtypes.is_defined(op, known.name):
                assert reduce.reduce_arrays([x], op, kernel=kernel).tobytes() == x.tobytes()
            else:
                with pytest.raises(TypeError, match=f"'{op}' is not defined on {known.name}"):
                    reduce.reduce_arrays([x], op, kernel=kernel)


def test_complex_numbers_have_no_order_and_integers_no_average():
    assert not dtypes.is_defined("min", "complex64")
    assert not dtypes.is_defined("avg", "int32")
    assert not dtypes.is_defined("bxor", "float32")
    assert dtypes.is_defined("avg", "bfloat16")
    assert dtypes.is_defined("land", "complex128")


def test_aliases_have_the_number_of_what_they_stand_for():
    assert dtypes.op_code("mean") == dtypes.op_code("avg") == dtypes.OPS.index("avg")
    for alias, op in dtypes.OP_ALIASES.items():
        assert dtypes.op_code(alias) == dtypes.op_code(op)


@pytest.mark.parametrize("op", ["median", "", None, 3, ["sum"]])
def test_an_unknown_op_is_refused_and_the_known_ones_are_named(op):
    with pytest.raises(ValueError, match="sum, prod, min"):
        dtypes.op_code(op)


@pytest.mark.parametrize("dtype", ["f4", "", None, 3, ["float32"]])
def test_an_unknown_dtype_is_refused_and_the_known_ones_are_named(dtype):
    with pytest.raises(ValueError, match=r"unknown dtype .* float32"):
        dtypes.is_defined("sum", dtype)
