"""Bandwidth of the reduction kernels, compared with a plain copy.

One number is the median time of one call on arrays that stay in the cache named by the group. The row ``memcpy`` in
each group copies one array of that size: it reads and writes 2 units where a reduction of n sources moves n + 1, so a
kernel limited by memory alone takes (n + 1) / 2 of it. ``ratio`` in the extra columns is the time over that of a copy
measured in turns with it.

    python -m pytest bench/bench_kernels.py --benchmark-columns=median,iqr --benchmark-group-by=group
    python bench/bench_kernels.py           # the table of docs/maintainers/kernels.md: ratios alone
    python bench/bench_kernels.py min band  # some of its rows
"""

import functools
import sys
from timeit import timeit

import ml_dtypes  # noqa: F401  (its dtypes have names then)
import numpy as np
import pytest
import sides  # noqa: F401  which finds `support`
from support import compiled
from turns import take_turns

from shmring.core.kernel import reduce

hooks = compiled.load("array_hooks")
KERNELS = reduce.kernels()["runnable"]
# Of an array. What Python does for a call takes some microseconds, which must be little beside the kernel.
SIZES = {"L2": 512 << 10, "L3": 4 << 20}
CASES = [
    ("sum", "float32"), ("sum", "float64"), ("sum", "bfloat16"), ("sum", "float16"), ("avg", "bfloat16"),
    ("sum", "int8"), ("sum", "int64"), ("prod", "complex64"), ("min", "float32"), ("max", "bfloat16"),
    ("band", "int32"), ("land", "bool"),
]  # fmt: skip
NSRCS = (2, 4, 8)


def prepared(op, dtype, nsrc, nbytes, kernel, **options):
    """A call that reduces ``nsrc`` arrays of ``nbytes``, and one that copies as much."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(0)
    # 320 bytes apart modulo a page, as arrays of a program are: equal offsets would fight for the same cache sets.
    room = np.empty((nsrc + 2, nbytes + 4096 + 320), np.uint8)
    arrays = [row[:nbytes].view(dtype) for row in room]
    for x in arrays:
        x[:] = rng.integers(0, 2, x.size).astype(dtype)
    *sources, out, also = arrays
    if options.pop("also", False):
        options["also"] = also
    reduction = functools.partial(hooks.reduce_arrays, sources, op, out, kernel=kernel, **options)
    expected = reduction().tobytes()
    assert expected == hooks.reduce_arrays(sources, op, kernel="baseline").tobytes()
    return reduction, lambda: np.copyto(also, out)


def ratio_to_copy(reduction, copy, nbytes):
    """Best of many short slices of each, in turn, so that disturbances affect both."""
    calls = max(1, (1 << 20) // nbytes)
    contenders = {"ours": reduction, "copy": copy}
    slices = {name: functools.partial(timeit, call, number=calls) for name, call in contenders.items()}
    taken = take_turns(slices, lambda cycle: cycle >= 25)
    return min(taken["ours"]) / min(taken["copy"])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("nsrc", NSRCS)
@pytest.mark.parametrize(("op", "dtype"), CASES)
@pytest.mark.parametrize("level", SIZES)
def test_reduce(benchmark, level, op, dtype, nsrc, kernel):
    nbytes = SIZES[level]
    reduction, copy = prepared(op, dtype, nsrc, nbytes, kernel)
    benchmark.group = f"{level} ({nbytes >> 10} KiB per array), {nsrc} sources"
    benchmark.extra_info.update(nbytes=nbytes, kernel=kernel, ratio=round(ratio_to_copy(reduction, copy, nbytes), 2))
    benchmark.pedantic(reduction, rounds=50, iterations=max(1, (1 << 20) // nbytes), warmup_rounds=2)


@pytest.mark.parametrize("nsrc", NSRCS)
@pytest.mark.parametrize("level", SIZES)
def test_memcpy(benchmark, level, nsrc):
    nbytes = SIZES[level]
    _, copy = prepared("sum", "float32", nsrc, nbytes, None)
    benchmark.group = f"{level} ({nbytes >> 10} KiB per array), {nsrc} sources"
    benchmark.pedantic(copy, rounds=50, iterations=max(1, (1 << 20) // nbytes), warmup_rounds=2)


@pytest.mark.parametrize("stores", [*reduce.STORES, ("streaming", "ordinary"), ("ordinary", "streaming")])
def test_two_destinations(benchmark, stores):
    """Sum of two into two destinations, by each kind of stores."""
    reduction, _ = prepared("sum", "float32", 2, SIZES["L3"], None, also=True, stores=stores)
    benchmark.group = "sum of two float32 arrays of 2 MiB into out and also"
    benchmark.pedantic(reduction, rounds=50, warmup_rounds=2)


@pytest.mark.parametrize("stores", reduce.STORES)
@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 24])
def test_copy(benchmark, nbytes, stores):
    """Each kind of stores, to a destination that no process reads."""
    src, dst = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    benchmark.group = f"copy of {nbytes} bytes"
    benchmark.pedantic(
        hooks.copy_array, (dst, src), {"stores": stores}, rounds=20, iterations=max(1, (1 << 18) // nbytes)
    )


def table(ops=(), out=sys.stdout):
    """The ratios as Markdown; of all operations, if none is named."""
    for level, nbytes in SIZES.items():
        print(f"\n{level}, {nbytes >> 10} KiB per array:\n", file=out)
        print("| op, dtype | " + " | ".join(f"{k}, {n}" for n in NSRCS for k in KERNELS) + " |", file=out)
        print("| --- |" + " --- |" * (len(KERNELS) * len(NSRCS)), file=out)
        for op, dtype in (case for case in CASES if not ops or case[0] in ops):
            ratios = (ratio_to_copy(*prepared(op, dtype, n, nbytes, k), nbytes) for n in NSRCS for k in KERNELS)
            print(f"| {op} {dtype} | " + " | ".join(f"{r:.1f}" for r in ratios) + " |", file=out, flush=True)


if __name__ == "__main__":
    table(sys.argv[1:])
