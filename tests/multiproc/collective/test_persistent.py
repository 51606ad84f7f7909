"""Persistent plans: every collective, as often as one likes, with what the arrays hold by then."""

import gc
import pickle

import numpy as np
import pytest
from support.calls import arguments_of
from support.harness import run_ranks
from support.on_ranks import on_ranks

from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.errors import ClosedError, MismatchError

REPEATS = 20  # more than there are slots


@on_ranks(1, 3)
def test_plans_have_the_names_of_their_calls_and_are_used_again_and_again(comm):
    """What has no array, or lists of arrays; and the names of all plans."""
    size, rank = comm.size, comm.rank
    root = size - 1
    arguments = {name: arguments_of(name, size, rank, root, 300) for name in COLLECTIVES}
    arguments["all_gather"][1]["counts"] = [300] * size
    arguments["all_reduce_many"][1]["op"] = "max"
    ((x, blocks),) = arguments["all_reduce_many"][0]
    plans = {name: comm.plan(name, *args, **kwargs) for name, (args, kwargs) in arguments.items()}
    for name, plan in plans.items():
        assert name in plan.describe().splitlines()[0]
        assert plan.name.startswith(f"{name}(")
        assert f" {name}(" in repr(plan)
    assert "counts of digest" in plans["all_gather"].name
    for i in range(REPEATS):
        assert plans["barrier"]() is None
        x[:], blocks[:] = rank + i, rank * i
        found = plans["all_reduce_many"].start().wait()
        assert [type(found), len(found)] == [list, 2]
        assert (x == root + i).all()
        assert (blocks == root * i).all()


@on_ranks(2, 3)
def test_some_ranks_may_use_a_plan_and_others_the_method(comm):
    x = np.zeros(3)
    plan = comm.plan("all_reduce", x)
    for i in range(50):
        x[:] = i
        (plan if comm.rank == i % comm.size else lambda: comm.all_reduce(x))()
        assert x.tolist() == [i * comm.size] * 3
    works = []
    for _ in range(5):
        x[:] = 1
        works.append(plan.start())
        works[-1].wait()
        assert plan() is x  # twice
        assert x.tolist() == [comm.size**2] * 3


def allocate_once(comm):
    plan = comm.plan("all_gather", np.full(5, comm.rank))
    gc.collect()
    first = plan()
    assert plan() is first  # the arrays live with the plan
    assert first.tolist() == [[r] * 5 for r in range(comm.size)]
    described = comm.plan("all_reduce", np.zeros(1 << 18)).describe()
    assert "reduce " in described
    assert f"rank {comm.rank} of {comm.size}" in described
    callable_plan = comm.plan("all_reduce", np.full(4, comm.rank + 1.0), np.empty(4), op=np.hypot)
    for _ in range(3):
        result = callable_plan()
    return result.tolist()


def test_a_plan_keeps_its_arrays_and_makes_new_outputs_once():
    expected = float(np.hypot(1.0, 2.0))
    assert run_ranks(2, allocate_once) == [[expected] * 4] * 2


@on_ranks(2, 3)
def test_a_plan_with_counts_returns_one_output_while_the_ranks_send_it_as_many_rows(comm):
    me, size = comm.rank, comm.size
    x = np.zeros((size * (me + 1), 2))
    plan = comm.plan("all_to_all", x, counts=[me + 1] * size)
    x[:] = me
    out = plan()
    x[:] = me + 10
    assert plan() is out
    assert plan.start().wait() is out
    assert out[:, 0].tolist() == [rank + 10 for rank in range(size) for _ in range(rank + 1)]
    # The others send other numbers of rows for once.
    other = plan() if me == 0 else comm.all_to_all(x[:size], counts=[1] * size)
    assert other[:, 1].tolist() == [rank + 10 for rank in range(size)]
    assert plan().shape == out.shape


@on_ranks(1, 2)
def test_what_cannot_be_planned_is_refused_and_nothing_is_sent(comm):
    x = np.ones(10, np.float32)
    for error, match, call in (
        (ValueError, "arrays in place", lambda: comm.plan("all_reduce", x[::2])),
        (ValueError, "arrays in place", lambda: comm.plan("all_reduce", x, np.ones(20, np.float32)[::2])),
        (ValueError, "arrays in place", lambda: comm.plan("broadcast", x.astype(">f4"))),
        (ValueError, "arrays in place", lambda: comm.plan("all_reduce_many", [np.ones(3), x[::2]])),
        (ValueError, "no plan for 'close'", lambda: comm.plan("close")),
        (TypeError, "plan.start", lambda: comm.plan("all_reduce", x, async_op=True)),
        (ValueError, "unknown op", lambda: comm.plan("all_reduce", x, op="median")),
        (TypeError, "neither copied nor pickled", lambda: pickle.dumps(comm.plan("all_reduce", x))),
        (TypeError, "argument", lambda: comm.plan("all_reduce", x, color=1)),
    ):
        if comm.rank == 0:
            with pytest.raises(error, match=match):
                call()
    plan = comm.plan("all_reduce", x)
    plan()
    comm.close()
    with pytest.raises(ClosedError):
        plan()
    with pytest.raises(ClosedError):
        plan.start()
    assert x.tolist() == [comm.size] * 10


@on_ranks(2)
def test_plans_that_disagree_are_noticed_when_they_are_used(comm):
    plan = comm.plan("all_reduce", np.ones(4), op="max" if comm.rank else "sum")
    with pytest.raises(MismatchError, match="all_reduce"):
        plan()
    with pytest.raises(MismatchError):
        plan()
