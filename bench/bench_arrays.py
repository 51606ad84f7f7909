"""The cost of finding pointer, count and dtype of an array, per kind of array.

One number is the mean time in ns of one way in (and back), called from C in a loop as the engine does, on eight
float32 that are in cache; Python's own call is not in it. `python bench/bench_arrays.py` prints the table, median and
quartiles over rounds that go through all kinds in turn, so that a slower spell of the machine meets all alike.
"""

import array
import platform
import sys
from functools import partial

import numpy as np
import pytest
import sides  # noqa: F401  which finds `support`
from support import compiled
from turns import summary, take_turns

arrays = compiled.load("array_hooks")

LOOPS = 2000
ROUNDS = 50


def kinds():
    """Name -> (array, whether it can be a target)."""
    found = {
        "ndarray": (np.ones(8, "f4"), True),
        "ndarray, read-only": (np.ones(8, "f4"), False),
        "ndarray subclass": (np.ones(8, "f4").view(np.recarray), True),
        "ndarray, strided": (np.ones(16, "f4")[::2], True),
        "ndarray, byte-swapped": (np.ones(8, ">f4"), True),
        "bytearray": (bytearray(32), True),
        "array.array": (array.array("f", [1] * 8), True),
        "memoryview": (memoryview(bytearray(32)), True),
        "bytes": (bytes(32), False),
    }
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        found["ml_dtypes.bfloat16"] = (np.ones(8, ml_dtypes.bfloat16), True)
    try:
        import torch
    except ImportError:
        pass
    else:
        found["tensor"] = (torch.ones(8), True)
        found["tensor, one element"] = (torch.ones(1), True)
        found["tensor, bfloat16"] = (torch.ones(8, dtype=torch.bfloat16), True)
        found["tensor, requires_grad"] = (torch.ones(8, requires_grad=True), True)
        found["tensor, strided"] = (torch.ones(16)[::2], True)
    try:
        import jax.numpy as jnp
    except ImportError:
        pass
    else:
        found["jax"] = (jnp.ones(8), False)
        found["jax, bfloat16"] = (jnp.ones(8, "bfloat16"), False)
    return found


@pytest.mark.parametrize("kind", kinds())
def test_one_way_in(benchmark, kind):
    """Time `LOOPS` conversions; ``extra_info`` has the nanoseconds of one."""
    x, writable = kinds()[kind]
    arrays.describe(x, writable)
    benchmark.group = "array to pointer"
    benchmark.pedantic(arrays.nanoseconds, args=(x, LOOPS, writable), rounds=ROUNDS, warmup_rounds=1)
    if benchmark.stats:
        benchmark.extra_info["ns"] = benchmark.stats["median"] / LOOPS * 1e9


def main():
    """Print the table."""
    slices = {kind: partial(arrays.nanoseconds, x, LOOPS, writable) for kind, (x, writable) in kinds().items()}
    taken = take_turns(slices, lambda cycle: cycle >= ROUNDS)
    print(f"python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}; ns per array")
    print(f"{'kind':<24}{'median':>9}{'quartiles':>18}")
    for kind, ns in taken.items():
        found = summary(ns)
        print(f"{kind:<24}{found['median']:>9.1f}{found['q1']:>10.1f}-{found['q3']:.1f}")


if __name__ == "__main__":
    sys.exit(main())
