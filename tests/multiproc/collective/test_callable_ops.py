"""Reductions by ufuncs and Python callables: folded in rank order, in step whatever the callable does."""

from functools import reduce as fold

import ml_dtypes
import numpy as np
import pytest
from support.harness import run_ranks
from support.inputs import same_bits, values
from support.on_ranks import on_ranks

from shmring.errors import MismatchError


def affine(a, b):
    """Neither commutative nor associative."""
    return (2 * a - b).astype(a.dtype)


def almost_affine(a, b):
    return (2 * a - b + 1).astype(a.dtype)


almost_affine.__qualname__ = "affine"


@on_ranks(2, 3)
def test_a_ufunc_gives_its_own_bits_on_every_dtype(comm):
    """A ufunc gives the bits of the ufunc, by a kernel or not."""
    for f in (np.add, np.multiply, np.minimum, np.maximum, np.bitwise_xor, np.logical_or, np.true_divide):
        for dtype in ("f8", "f4", "f2", ml_dtypes.bfloat16, "i4", "u1", "?", "c8", "c16"):
            xs = [values(dtype, 200, r, 3) for r in range(comm.size)]
            try:
                same = f(xs[0], xs[0]).dtype == xs[0].dtype
            except TypeError:
                same = False
            if not same:
                with pytest.raises(TypeError):
                    comm.all_reduce(xs[comm.rank].copy(), op=f)
                continue
            with np.errstate(all="ignore"):
                result = comm.all_reduce(xs[comm.rank].copy(), op=f)
                expected = fold(f, xs)
            nan = expected != expected
            assert (result[nan] != result[nan]).all()
            assert same_bits(result[~nan], expected[~nan]), (f, dtype)


def shapes_and_layouts(comm):
    seen = []

    def record(a, b):
        seen.append((type(a), a.shape, a.dtype.name, b.shape))
        return a + b

    x = np.ones((3, 4), np.float32).T
    assert comm.all_reduce(x, op=record) is x
    assert (x == comm.size).all()
    scalar = np.array(2.0)
    comm.all_reduce(scalar, op=record)
    assert scalar == 2 * comm.size
    swapped = np.ones(5, ">i4")
    comm.all_reduce(swapped, op=record)
    assert (swapped == comm.size).all()
    raw = bytearray(b"\1\2")
    comm.all_reduce(raw, op=record)
    assert raw == bytes([comm.size, 2 * comm.size])
    return seen[:: comm.size - 1]


def test_callables_see_arrays_of_the_results_shape():
    for seen in run_ranks(2, shapes_and_layouts):
        assert seen[0] == (np.ndarray, (4, 3), "float32", (4, 3))
        assert [shape for _, shape, _, _ in seen] == [(4, 3), (), (5,), (2,)]


def fail_on_one_rank(comm, count):
    def f(a, b):
        if comm.rank == 1:
            raise LookupError("only here")
        return a + b

    results = []
    for call in (
        lambda x: comm.all_reduce(x, op=f),
        lambda x: comm.scan(x, op=f),
        lambda x: comm.reduce(x, root=1, op=f),
        lambda x: comm.reduce_scatter(np.stack([x] * comm.size), op=f),
        lambda x: comm.all_reduce(x, op=f, async_op=True).wait(),
    ):
        x = np.ones(count)
        if comm.rank == 1:
            with pytest.raises(LookupError, match="only here"):
                call(x)
            assert (x == 1).all()
        else:
            result = call(x)
            results.append(None if result is None else float(result[0]))
        assert not comm.is_broken
        comm.barrier()
    return results


@pytest.mark.parametrize("count", [2, 10_000])
def test_an_exception_in_a_callable_is_of_its_own_rank_and_all_remain_in_step(count):
    results = run_ranks(3, fail_on_one_rank, count)
    assert results[0] == [3, 1, None, 3, 3]
    assert results[2] == [3, 3, None, 3, 3]


@on_ranks(2, 3)
def test_a_function_reduces_blocks_of_different_sizes(comm):
    counts = [2 * rank for rank in range(comm.size)]
    xs = [np.arange(3.0 * sum(counts)).reshape(-1, 3) * 3**rank for rank in range(comm.size)]
    end = sum(counts[: comm.rank + 1])
    found = comm.reduce_scatter(xs[comm.rank], counts=counts, op=affine)
    assert same_bits(found, fold(affine, xs)[end - counts[comm.rank] : end])


@on_ranks(2)
def test_results_unlike_the_operands_and_other_ufuncs_are_refused(comm):
    x = np.ones(4, np.float32)
    for f in (
        lambda a, b: (a + b).astype(np.float64),
        lambda a, b: np.concatenate([a, b]),
        lambda a, b: None,
        lambda a, b: float(a[0]),
    ):
        with pytest.raises(TypeError):
            comm.all_reduce(x, op=f)
        assert x.tolist() == [1] * 4
    for bad, error in (
        (np.negative, ValueError),
        (np.divmod, ValueError),
        (np.matmul, ValueError),
        (np.less, TypeError),
        (np.logical_and, TypeError),
        (None, ValueError),
        (3, ValueError),
    ):
        if comm.rank == 0:  # before anything is sent
            with pytest.raises(error):
                comm.reduce(x, root=1, op=bad)
    assert comm.all_reduce(x).tolist() == [2] * 4


@pytest.mark.parametrize("count", [4, 10_000])
@pytest.mark.parametrize("way", ["op", "movement", "count", "function", "constant", "ufunc"])
@on_ranks(2)
def test_ranks_that_pass_different_functions_or_none_get_an_error(comm, way, count):
    x = np.ones(count)
    with pytest.raises(MismatchError, match="all_reduce"):
        if comm.rank == 0:
            comm.all_reduce(x, op=affine)
        elif way == "op":
            comm.all_reduce(x, op="sum")
        elif way == "movement":
            comm.all_gather(x)
        elif way == "function":
            comm.all_reduce(x, op=lambda a, b: 3 * a + b)
        elif way == "constant":
            comm.all_reduce(x, op=almost_affine)
        elif way == "ufunc":
            comm.all_reduce(x, op=np.hypot)
        else:
            comm.all_reduce(x[1:].copy(), op=affine)
