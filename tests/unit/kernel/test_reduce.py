"""Every kernel that can run here against the NumPy model, bit for bit."""

import os
import subprocess
import sys
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from support import compiled
from support.oracle import reduce_model

from shmring.core.kernel import reduce
from shmring.core.kernel.reduce import STORES
from shmring.dtypes import DTYPES, OPS, is_defined

hooks = compiled.load("array_hooks")
SEED = int(os.environ.get("SHMRING_SEED", "20240229"))
KERNELS = reduce.kernels()["runnable"]
PAIRS = [(op, d.name) for d in DTYPES for op in OPS if is_defined(op, d.name)]
# 0, one item, less than any vector, odd, and one more than four 64-byte vectors of bytes.
COUNTS = (0, 1, 2, 3, 5, 7, 15, 31, 33, 63, 100, 257, 1031)
# 1, the unrolled ones (2, 3, 4), and the general loop.
NSRCS = (1, 2, 3, 4, 5, 7, 16)

each_kernel = pytest.mark.parametrize("kernel", KERNELS)
each_pair = pytest.mark.parametrize(("op", "dtype"), PAIRS)


def special_values(dtype):
    """What goes wrong if anything does: signed zeros, denormals, infinities, NaNs of both kinds and signs, extremes."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([0, 1, 2, 3, info.max, info.max - 1, info.min, info.min + 1], dtype)
    if dtype.kind == "b":
        return np.array([0, 1, 2, 128, 255], np.uint8).view(bool)
    if dtype.kind == "c":
        parts = special_values(np.dtype(f"float{4 * dtype.itemsize}"))
        return np.stack([np.repeat(parts, len(parts)), np.tile(parts, len(parts))], axis=1).reshape(-1).view(dtype)
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    info = ml_dtypes.finfo(dtype)
    infinity = int(np.array(np.inf, dtype).view(bits))
    one = int(np.array(1, dtype).view(bits))
    quiet = infinity | 1 << (int(info.nmant) - 1)
    normal = 1 << int(info.nmant)
    magnitudes = [0, 1, 2, normal - 1, normal, one, one + 1, infinity - 1, infinity, infinity + 1, quiet, quiet + 1]
    sign = 1 << (8 * dtype.itemsize - 1)
    return np.array([m | s for m in magnitudes for s in (0, sign)], bits).view(dtype)


def random_array(rng, dtype, count, specials=0.2):
    """Plausible numbers with special values strewn in; any bits are a value of every dtype here."""
    if dtype.kind == "b":
        x = rng.integers(0, 3, count, np.uint8).view(bool)
    elif dtype.kind in "iu":
        x = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).copy()
    elif dtype.kind == "c":
        x = (rng.standard_normal(count) + 1j * rng.standard_normal(count)).astype(dtype)
    else:
        x = (rng.standard_normal(count) * 2.0 ** rng.integers(-6, 7, count)).astype(dtype)
    pool = special_values(dtype)
    chosen = rng.random(count) < specials
    x[chosen] = pool[rng.integers(0, len(pool), count)][chosen]
    return x


def unaligned_like(x, offset):
    """A copy of ``x`` that starts ``offset`` bytes past a multiple of 64."""
    room = np.zeros(x.nbytes + 64 + offset, np.uint8)
    start = -room.ctypes.data % 64 + offset
    y = room[start : start + x.nbytes].view(x.dtype)
    y[:] = x
    return y


def bits(x):
    return x.reshape(-1).view(np.uint8).tobytes()


def assert_same_bits(got, expected, *hints):
    """Compare bytes; on failure show the first element that differs."""
    assert got.dtype == expected.dtype
    if bits(got) != bits(expected):
        word = np.dtype(f"V{got.itemsize}")
        at = np.flatnonzero(got.view(word) != expected.view(word))[0]
        pytest.fail(
            f"{hints}: element {at} of {got.size}: {got[at]!r} {bits(got[at : at + 1]).hex()}, "
            f"expected {expected[at]!r} {bits(expected[at : at + 1]).hex()}; SHMRING_SEED={SEED}"
        )


def assert_agrees(sources, op):
    """All kernels give the bits of the model."""
    expected = reduce_model(sources, op)
    for kernel in KERNELS:
        assert_same_bits(hooks.reduce_arrays(sources, op, kernel=kernel), expected, op, kernel, len(sources))


@pytest.mark.sample(50)
@each_pair
def test_every_count_and_number_of_sources_gives_the_bits_of_the_model(op, dtype):
    rng = np.random.default_rng(SEED)
    for nsrc in NSRCS:
        whole = [random_array(rng, np.dtype(dtype), max(COUNTS)) for _ in range(nsrc)]
        expected = reduce_model(whole, op)
        for count in COUNTS:
            sources = [x[:count] for x in whole]
            before = random_array(rng, np.dtype(dtype), count + 1)
            for kernel in KERNELS:
                room = unaligned_like(before, 0)
                got = hooks.reduce_arrays(sources, op, room[:count], kernel=kernel)
                assert_same_bits(got, expected[:count], op, dtype, kernel, nsrc, count)
                assert bits(room[count:]) == bits(before[count:]), "wrote past the end"


@each_pair
def test_unaligned_starts_and_in_place_results_make_no_difference(op, dtype):
    rng = np.random.default_rng(SEED + 1)
    for nsrc in (1, 2, 3, 5):
        original = [random_array(rng, np.dtype(dtype), 301) for _ in range(nsrc)]
        expected = reduce_model(original, op)
        for k, kernel in product(range(nsrc), KERNELS):
            sources = [unaligned_like(x, offset) for x, offset in zip(original, rng.integers(0, 64, nsrc), strict=True)]
            assert hooks.reduce_arrays(sources, op, sources[k], kernel=kernel) is sources[k]
            assert_same_bits(sources[k], expected, op, dtype, kernel, nsrc, k)
            for j in set(range(nsrc)) - {k}:
                assert_same_bits(sources[j], original[j], "a source changed", j)


@pytest.mark.sample(30)
@each_kernel
@pytest.mark.parametrize("stores", [*STORES, ("streaming", "prefetched"), ("prefetched", "ordinary")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex128", "float8_e4m3fn"])
def test_a_second_destination_and_all_stores_get_the_same_bits(dtype, stores, kernel):
    rng = np.random.default_rng(SEED + 2)
    for count in (0, 1, 13, 64, 4099, 20011):
        for nsrc in (1, 2, 5):
            original = [random_array(rng, np.dtype(dtype), count) for _ in range(nsrc)]
            expected = reduce_model(original, "sum")
            # Where the results go: elsewhere, onto a source each, onto one source.
            for out_place, also_place in ((None, None), (0, nsrc - 1), (nsrc - 1, None), (None, 0)):
                sources = [
                    unaligned_like(x, offset) for x, offset in zip(original, rng.integers(0, 64, nsrc), strict=True)
                ]
                if out_place is not None and out_place == also_place:
                    continue
                offset = int(rng.integers(0, 64))
                out = unaligned_like(original[0], offset) if out_place is None else sources[out_place]
                also = unaligned_like(original[0], 63 - offset) if also_place is None else sources[also_place]
                hooks.reduce_arrays(sources, "sum", out, also=also, kernel=kernel, stores=stores)
                assert_same_bits(out, expected, dtype, kernel, count, nsrc, stores, out_place, also_place)
                assert_same_bits(also, expected, dtype, kernel, count, nsrc, stores, out_place, also_place)
                if out_place is None:
                    continue
                for j in set(range(nsrc)) - {out_place, also_place}:
                    assert_same_bits(sources[j], original[j], "a source changed", j)


@pytest.mark.sample(3)
@each_kernel
@pytest.mark.parametrize("stores", STORES)
def test_a_thousand_sources_are_folded_in_order(kernel, stores):
    rng = np.random.default_rng(SEED + 3)
    for nsrc in (512, 513, 1000):  # either side of the most that reduce_into takes block by block
        sources = [random_array(rng, np.dtype(np.float32), 37, specials=0) for _ in range(nsrc)]
        expected = reduce_model(sources, "sum")
        also = np.empty_like(expected)
        got = hooks.reduce_arrays(sources, "sum", also=also, kernel=kernel, stores=stores)
        assert_same_bits(got, expected, kernel, nsrc)
        assert_same_bits(also, expected, kernel, nsrc)


@pytest.mark.parametrize(("op", "dtype"), [p for p in PAIRS if p[1] in ("float16", "bfloat16")])
def test_all_patterns_of_16_bit_floats_agree_with_the_model(op, dtype):
    every = np.arange(65536, dtype=np.uint16).view(np.dtype(dtype))
    rng = np.random.default_rng(SEED + 4)
    assert_agrees([every], op)
    for _ in range(8):
        assert_agrees([every, rng.permutation(every)], op)
    assert_agrees([rng.permutation(every) for _ in range(5)], op)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_16_bit_sum_rounds_to_even_between_any_two_neighbours(dtype):
    """For each pair of neighbours: the point half-way between them, and just off it, as sums of float32 parts."""
    finite = np.arange(65536, dtype=np.uint16).view(np.dtype(dtype))
    finite = finite[np.isfinite(finite.astype(np.float32))]
    rng = np.random.default_rng(SEED + 5)
    for _ in range(4):
        # x + half a unit of x + a crumb of either sign: in float32 exact or nearly so, in 16 bits a tie or just none.
        nmant = int(ml_dtypes.finfo(np.dtype(dtype)).nmant)
        half = (finite.astype(np.float32) * np.float32(2.0 ** -(nmant + 1))).astype(finite.dtype)
        crumb = (half.astype(np.float32) * np.float32(2.0**-nmant)).astype(finite.dtype)
        sign = rng.choice(np.array([-1, 0, 1], np.float32), finite.shape).astype(finite.dtype)
        assert_agrees([finite, half, (crumb.astype(np.float32) * sign.astype(np.float32)).astype(finite.dtype)], "sum")


@pytest.mark.parametrize(("op", "dtype"), [p for p in PAIRS if np.dtype(p[1]).itemsize == 1])
def test_all_pairs_of_bytes_agree_with_the_model_on_every_kernel(op, dtype):
    assert_agrees([x.reshape(-1).view(np.dtype(dtype)) for x in np.mgrid[:256, :256].astype(np.uint8)], op)


@pytest.mark.parametrize(("op", "dtype"), [p for p in PAIRS if np.dtype(p[1]).itemsize > 1])
def test_all_triples_of_special_values_agree_with_the_model_on_every_kernel(op, dtype):
    values = special_values(np.dtype(dtype))
    if dtype.startswith("complex"):
        values = np.random.default_rng(SEED + 6).permutation(values)[:40]
    n = len(values)
    assert_agrees([values[index.reshape(-1)] for index in np.mgrid[:n, :n, :n]], op)


@each_kernel
def test_bytes_that_are_neither_0_nor_1_are_true_and_results_are_0_or_1(kernel):
    odd = np.array([0, 0, 2, 2, 255, 7], np.uint8).view(bool)
    other = np.array([0, 4, 0, 4, 255, 0], np.uint8).view(bool)
    both, any_, one = [0, 0, 0, 1, 1, 0], [0, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1]
    all_ops = {"prod": both, "min": both, "band": both, "land": both, "bxor": one}
    all_ops |= {"sum": any_, "max": any_, "bor": any_, "lor": any_}
    for op, expected in all_ops.items():
        assert hooks.reduce_arrays([odd, other], op, kernel=kernel).view(np.uint8).tolist() == expected, op


@each_kernel
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_min_and_max_keep_the_first_of_equals_and_the_first_nan(dtype, kernel):
    zeros = np.array([0.0, -0.0], np.dtype(dtype))
    for op in ("min", "max"):
        assert_same_bits(hooks.reduce_arrays([zeros, zeros[::-1].copy()], op, kernel=kernel), zeros, op)
    nans = np.zeros(4, np.dtype(dtype))
    infinity = int(np.array(np.inf, nans.dtype).view(f"u{nans.itemsize}"))
    nans.view(f"u{nans.itemsize}")[:] = infinity + np.array([1, 2, 3, 4])  # signalling, with different payloads
    number = np.ones_like(nans)
    for op in ("min", "max"):
        assert_same_bits(hooks.reduce_arrays([number, nans, nans[::-1].copy()], op, kernel=kernel), nans, op)


@each_kernel
def test_float_sums_fold_in_rank_order(kernel):
    big, one = np.array([2.0**24], np.float32), np.array([1.0], np.float32)
    assert hooks.reduce_arrays([big, one, one], "sum", kernel=kernel)[0] == 2.0**24
    assert hooks.reduce_arrays([one, one, big], "sum", kernel=kernel)[0] == 2.0**24 + 2


@each_kernel
def test_16_bit_sums_round_once(kernel):
    for dtype, unit in ((np.dtype(np.float16), 2.0**-11), (np.dtype("bfloat16"), 2.0**-8)):
        one, half_unit = np.ones(1, dtype), np.array([unit], dtype)
        # Rounded after each addition, 1 + half a unit would stay 1 for ever.
        assert hooks.reduce_arrays([one, half_unit, half_unit], "sum", kernel=kernel)[0] == 1 + 2 * unit


@each_kernel
def test_products_and_sums_are_not_fused(kernel):
    """(1 + e)(1 + e) - (1 + 2e): a fused multiply-add keeps the e*e that two roundings lose."""
    e = 2.0**-12
    x = np.array([complex(1 + e, 1 + 2 * e)], np.complex64)
    y = np.array([complex(1 + e, 1)], np.complex64)
    assert hooks.reduce_arrays([x, y], "prod", kernel=kernel).real == 0


@pytest.fixture
def chosen(request):
    """The kernels of one instruction set are this process's, for a test."""
    before = reduce.kernels()["chosen"]
    reduce.use_kernel(request.param)
    yield
    reduce.use_kernel(before)


@pytest.mark.parametrize("chosen", KERNELS, indirect=True)
@pytest.mark.parametrize("stores", STORES)
@pytest.mark.usefixtures("chosen")
def test_copies_are_exact_at_every_size_and_alignment(stores):
    rng = np.random.default_rng(SEED + 7)
    for nbytes in (0, 1, 7, 63, 64, 65, 127, 128, 129, 1000, 1024, 1087, 4096, 8191, 8192, 9300, 65536 + 5, 1 << 20):
        for _ in range(4):
            src = unaligned_like(rng.integers(0, 256, nbytes, np.uint8), int(rng.integers(0, 64)))
            before = rng.integers(0, 256, nbytes + 128, np.uint8)
            room = unaligned_like(before, int(rng.integers(0, 64)))
            hooks.copy_array(room[64 : 64 + nbytes], src, stores=stores)
            assert bits(room) == bits(before[:64]) + bits(src) + bits(before[64 + nbytes :])


def test_kernels_can_be_listed_and_forced():
    before = reduce.kernels()
    assert before["chosen"] in before["runnable"]
    assert set(before["runnable"]) <= set(before["built"])
    try:
        for name in before["runnable"]:
            reduce.use_kernel(name)
            assert reduce.kernels()["chosen"] == name
        with pytest.raises(ValueError, match="'sse9' is unknown; can run here: baseline"):
            reduce.use_kernel("sse9")
        assert reduce.kernels()["chosen"] == before["runnable"][-1]
    finally:
        reduce.use_kernel(before["chosen"])


@pytest.mark.parametrize("name", [*KERNELS, "", "sse9"])
def test_the_environment_chooses_the_kernel_at_import(name):
    code = "from shmring.core.kernel import reduce; print(reduce.kernels()['chosen'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SHMRING_KERNEL": name},
        capture_output=True,
        text=True,
    )
    if name == "sse9":
        assert done.returncode != 0
        assert "ImportError: SHMRING_KERNEL: kernel 'sse9' is unknown; can run here: baseline" in done.stderr
    else:
        assert done.stdout.split() == [name or KERNELS[-1]], done.stderr
