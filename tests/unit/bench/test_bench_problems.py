"""The expected results of the benchmark are those of NumPy, for every collective, and it detects wrong ones."""

import numpy as np
import pytest

from shmring.bench import metrics
from shmring.bench.worker import ours
from shmring.bench.worker.problem import NONE, PERIOD, SHAPES, SHARE, SPLIT, WHOLE, Number, Problem
from shmring.engine.kinds import COLLECTIVES

OPS = [op for op in metrics.OPS if op != "barrier"]


def problems(op, size, dtype="float32", nbytes=4 * 3 * (PERIOD + 5)):
    """Problems of all ranks, inputs written."""
    made = [Problem(op, dtype, nbytes, rank, size, np.empty) for rank in range(size)]
    for problem in made:
        problem.fill(seed=1)
    return made


def solve(op, made):
    """What the collective does, in one process."""
    xs = [problem.x.copy() for problem in made]
    for rank, problem in enumerate(made):
        if op == "all_reduce" or (op == "reduce" and rank == 0):
            problem.x[...] = sum(xs)
        elif op == "broadcast":
            problem.x[...] = xs[0]
        elif op == "all_gather" or (op == "gather" and rank == 0):
            problem.y[...] = np.concatenate(xs)
        elif op == "reduce_scatter":
            problem.y[...] = np.split(sum(xs), len(made))[rank]
        elif op == "scatter":
            problem.y[...] = np.split(xs[0], len(made))[rank]
        elif op == "all_to_all":
            problem.y[...] = np.concatenate([np.split(x, len(made))[rank] for x in xs])
        elif op == "ping_pong" and problem.partner is not None:
            problem.y[...] = xs[problem.partner]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("op", OPS)
def test_the_right_answer_is_taken_for_right(op, size):
    made = problems(op, size)
    solve(op, made)
    assert all(problem.is_right() for problem in made)


@pytest.mark.parametrize("op", OPS)
def test_no_answer_is_not(op):
    assert not all(problem.is_right() for problem in problems(op, 2))


@pytest.mark.parametrize("op", OPS)
def test_one_wrong_element_is_noticed(op):
    made = problems(op, 3)
    solve(op, made)
    answer = made[0].x if op in ("all_reduce", "reduce", "broadcast") else made[0].y
    answer[answer.size // 2] += 1
    assert not made[0].is_right()


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
def test_parts_in_the_wrong_order_are_noticed(op):
    made = problems(op, 3)
    solve(op, made)
    answer = made[0].x if op == "all_reduce" else made[0].y
    answer[...] = np.concatenate(np.split(answer, 3)[::-1])
    assert not made[0].is_right()


@pytest.mark.parametrize("op", metrics.OPS)
def test_an_answer_of_before_does_not_pass_for_the_next_one(op):
    if op == "barrier":
        pytest.skip("a barrier has no answer")
    made = problems(op, 2)
    solve(op, made)
    kept = [(problem.x.copy(), problem.y.copy()) for problem in made]
    for problem, (x, y) in zip(made, kept, strict=True):
        problem.fill(seed=2)
        problem.x[...], problem.y[...] = x, y
    assert not all(problem.is_right() for problem in made)


@pytest.mark.parametrize("op", metrics.OPS)
def test_sizes_are_whole_elements_for_every_rank(op):
    for nbytes in (1, 8, 100):
        made = Problem(op, "float32", nbytes, 0, 3, np.empty)
        assert made.nbytes % 4 == 0
        assert (made.nbytes > 0) == (op != "barrier")
        if "share" in SHAPES[op]:
            assert made.nbytes % 12 == 0


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "bfloat16", "float64"])
@pytest.mark.parametrize("size", [2, 7, 120])
def test_sums_over_all_ranks_are_exact_in_every_type(dtype, size):
    made = Problem("all_reduce", dtype, 64, 0, size, np.empty)
    made.fill(seed=3)
    sums = made._base.sum(axis=0)
    assert np.array_equal(_decoded(Number(dtype), sums), sums)


def _decoded(number, integers):
    encoded = number.encode(integers)
    if number.name != "bfloat16":
        return encoded.astype(np.int64)
    return (encoded.astype(np.uint32) << 16).view(np.float32).astype(np.int64)


def test_bfloat16_is_stored_as_ml_dtypes_has_it():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    integers = np.arange(257)
    assert np.array_equal(Number("bfloat16").encode(integers), integers.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("name", [op for op in metrics.OPS if op in COLLECTIVES and op != "barrier"])
def test_the_tables_of_ranks_without_shmring_agree_with_that_of_the_kinds(name):
    """A rank runs in interpreters that have no shmring, or an older one; so it cannot read the table."""
    kind, in_place = COLLECTIVES[name], name in ("all_reduce", "reduce", "broadcast")
    assert SHAPES[name][0] == (SHARE if kind.blocks_out and not kind.blocks_in else WHOLE)
    assert SHAPES[name][1] == (NONE if in_place else SHARE if kind.blocks_in and not kind.blocks_out else WHOLE)
    assert (name in SPLIT) == (kind.blocks_in or kind.blocks_out)
    assert ours.BY_RANK.get(name, "") == "x" * kind.blocks_in + "y" * kind.blocks_out
    first, other = ours.ARGUMENTS[name]
    assert (first == other) == (not kind.has_root or in_place)
