"""Many arrays as one operation: the bits of one call for each, fewer rounds, and disagreement noticed."""

import random

import numpy as np
import pytest
from support.inputs import NUMPY_DTYPES, same_bits, values
from support.on_ranks import on_ranks

from shmring.dtypes import is_defined
from shmring.errors import MismatchError

# One array can be nothing, a scalar, small, at the limit of being small, just above it, or large.
COUNTS = (0, 1, 3, 600, 4096, 4097, 100_000)


def copies(arrays):
    return [x.copy() for x in arrays]


@on_ranks(1, 2, 3, 4)
def test_many_arrays_get_the_bits_of_separate_calls(comm, seed):
    rng = random.Random(seed)
    for trial in range(8):
        op = ("sum", "max", "prod")[trial % 3]
        names = [name for name in NUMPY_DTYPES if is_defined(op, name)]
        few = rng.sample(names, 1 + trial % 4)
        layout = [(rng.choice(few), rng.choice(COUNTS)) for _ in range(rng.randrange(40))]
        xs = [values(NUMPY_DTYPES[name], count, comm.rank, i, trial) for i, (name, count) in enumerate(layout)]
        expected = [comm.all_reduce(x, op=op) for x in copies(xs)]
        together = copies(xs)
        results = comm.all_reduce_many(together, op=op)
        assert all(a is b for a, b in zip(results, together, strict=True))
        assert all(map(same_bits, together, expected)), (layout, op)
        work = comm.all_reduce_many(tuple(copies(xs)), op=op, async_op=True)
        assert all(map(same_bits, work.wait(), expected))


@on_ranks(2, 3)
def test_small_arrays_fill_as_many_bundles_as_they_need(comm):
    xs = [np.full(1000, i + comm.rank, np.int32) for i in range(700)]  # 2.8 MB: three bundles
    comm.all_reduce_many(xs, op="max")
    assert all((x == i + comm.size - 1).all() for i, x in enumerate(xs))


@on_ranks(2, init={"eager_nbytes": 4096})
def test_a_hundred_small_arrays_make_one_round(comm):
    plan = comm.plan("all_reduce_many", [np.zeros(10, np.float32) for _ in range(100)])
    mixed = comm.plan("all_reduce_many", [np.zeros(9), np.zeros(3, np.int8), np.zeros(99_999), np.zeros(2)])
    plan()
    mixed()
    described = plan.describe()
    assert described.splitlines()[0] == "all_reduce_many(100 arrays)"
    assert described.count("one round of eager messages") == 1
    assert "send  4000 bytes" in described
    # float64 and int8 in a bundle each, and the large one.
    assert mixed.describe().count("one round of eager messages") == 2
    assert "2 bundles of small arrays, 1 large ones" in repr(mixed)
    assert mixed.describe().count("all_reduce, ") == 1


@on_ranks(1, 2)
def test_arrays_of_any_layout_may_be_in_the_list(comm):
    xs = [np.ones((6, 4), np.float32).T, np.ones(9)[::3], np.array(1.5), bytearray(b"\1\2"), np.ones(3, ">f8")]
    comm.all_reduce_many(xs, op="max")
    comm.all_reduce_many(xs[:3])
    assert (xs[0] == comm.size).all()
    assert (xs[1] == comm.size).all()
    assert xs[2] == 1.5 * comm.size
    assert xs[3] == b"\1\2"
    assert comm.all_reduce_many(()) == []


@on_ranks(1, 2)
def test_bad_lists_raise_before_anything_is_sent(comm):
    x = np.ones(10)
    cases = [
        (TypeError, lambda: comm.all_reduce_many(x)),
        (TypeError, lambda: comm.all_reduce_many([x, 1])),
        (TypeError, lambda: comm.all_reduce_many([x.astype(int), x], op="band")),
        (ValueError, lambda: comm.all_reduce_many([x], op="median")),
        (ValueError, lambda: comm.all_reduce_many([x, np.ones(2), x])),
        (ValueError, lambda: comm.all_reduce_many([x[5:], np.ones(2), x[:6]])),
        (ValueError, lambda: comm.all_reduce_many([x, x[3:3], x[4:]])),
        (ValueError, lambda: comm.all_reduce_many([x], timeout=-1)),
    ]
    for error, call in cases:
        if comm.rank == 0:
            with pytest.raises(error):
                call()
    comm.all_reduce_many([x[:5], x[5:]])
    assert x.tolist() == [comm.size] * 10


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([("f4", 3), ("f4", 5)], [("f4", 5), ("f4", 3)]),  # the same bytes in all
        ([("f4", 3), ("f4", 5)], [("f4", 8)]),
        ([("f4", 3), ("i4", 5), ("f4", 2)], [("f4", 3), ("f4", 2), ("i4", 5)]),
        ([("f4", 3), ("f4", 0)], [("f4", 3)]),
        ([("f4", 2000), ("f4", 3000)], [("f4", 3000), ("f4", 2000)]),  # not eager
        ([("f4", 3), ("f4", 9000), ("f4", 4)], [("f4", 3), ("f4", 4), ("f4", 9000)]),
    ],
)
@on_ranks(2)
def test_ranks_whose_lists_differ_get_an_error(comm, mine, theirs):
    xs = [np.ones(count, dtype) for dtype, count in (theirs if comm.rank else mine)]
    with pytest.raises(MismatchError, match=r"all_reduce_many\((.|\n)*layout"):
        comm.all_reduce_many(xs)
        comm.barrier()
