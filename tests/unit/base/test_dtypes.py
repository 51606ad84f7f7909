"""Names and numbers of dtypes and operations, in Python and in C."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from support import compiled
from support.installed import ROOT

from shmring import dtypes
from shmring.core.kernel import reduce


def test_item_sizes_are_those_of_numpy():
    pytest.importorskip("ml_dtypes")
    for d in dtypes.DTYPES:
        numpy_dtype = np.dtype(d.name)
        assert (numpy_dtype.name, numpy_dtype.itemsize) == (d.name, d.itemsize)


@pytest.mark.parametrize("known", dtypes.DTYPES, ids=lambda d: d.name)
def test_a_kernel_exists_exactly_where_the_operation_is_defined_in_every_instruction_set(known):
    pytest.importorskip("ml_dtypes")
    hooks = compiled.load("array_hooks")
    x = np.ones(3, known.name)
    for kernel in reduce.kernels()["runnable"]:
        for op in dtypes.OPS:
            if dtypes.is_defined(op, known.name):
                assert hooks.reduce_arrays([x], op, kernel=kernel).tobytes() == x.tobytes()
            else:
                with pytest.raises(TypeError, match=f"'{op}' is not defined on {known.name}"):
                    hooks.reduce_arrays([x], op, kernel=kernel)


def test_what_c_says_of_them_is_written_from_the_rows():
    tool = Path(__file__).parents[3] / "tools" / "enums.py"
    if not tool.exists():
        pytest.skip("needs a checkout")
    files = runpy.run_path(str(tool))["written"]()
    assert files
    for path, text in files.items():
        assert path.read_text() == text, f"run tools/enums.py: {path} is older than the rows"


def test_the_numbers_of_xla_are_those_of_its_interface():
    header = (ROOT / "shmring" / "jax" / "functions" / "xla_ffi_abi.h").read_text()  # a wheel does not have it
    numbers = {name: int(number) for name, number in re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", header)}
    for d in dtypes.DTYPES:
        letters, digits = re.fullmatch(r"([a-z]+)(\w*)", d.name).groups()
        family = {"int": "S", "bool": "PRED", "bfloat": "BF"}.get(letters, letters[0].upper())
        assert numbers[family + digits.replace("_", "").upper()] == d.xla, d.name


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
