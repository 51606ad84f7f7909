"""Two plans of one all-reduce: ranks may change from one to the other after the first await."""

from dataclasses import replace

import pytest
from support.plans.cases import small

from shmring.plan.choose import EXCHANGE_RANKS, choose
from shmring.plan.limits import LINE, Limits
from shmring.plan.steps import ALL, Await, Publish, Reduce


def beginning(plan):
    """The steps up to the first await, with their types: steps of two types compare equal if their fields do."""
    steps = plan.loops[0].steps
    at = [isinstance(step, Await) for step in steps].index(True)
    assert plan.loops[0].times == 1
    return [(type(step), step) for step in steps[: at + 1]]


@pytest.mark.parametrize("size", range(2, EXCHANGE_RANKS + 1))
def test_both_plans_begin_alike(size):
    for limits in (Limits(one_shot_nbytes=0), replace(small(size), one_shot_nbytes=0)):
        for nbytes in (LINE * (size - 1) + 4, 1000, 4096, 65536 + 4, 1 << 20, (5 << 20) + 12):
            for rank in range(size):
                plan = choose("all_reduce", rank, size, nbytes, 4, limits=limits)
                assert (plan.algorithm, plan.exchange.algorithm) == ("two_shot", "exchange")
                first = beginning(plan)
                assert first == beginning(plan.exchange)
                assert first[-1][1].ranks is ALL
                assert any(kind is Publish and step.round.at(0) == 0 for kind, step in first)
                assert (plan.used_nbytes, plan.in_place) == (plan.exchange.used_nbytes, plan.exchange.in_place)


def test_a_vector_with_too_few_lines_has_one_plan_only():
    limits = Limits(one_shot_nbytes=0)
    assert choose("all_reduce", 0, 2, LINE, 4, limits=limits).exchange is None
    assert choose("all_reduce", 0, 4, 3 * LINE, 4, limits=limits).exchange is None
    assert choose("all_reduce", 0, EXCHANGE_RANKS + 1, 1 << 20, 4, limits=limits).exchange is None
    assert choose("reduce_scatter", 0, 2, 1 << 20, 4, limits=limits).exchange is None


def test_an_element_comes_over_once_with_its_ownership():
    # The fold stores into the slot first, in the same pass in which it loads from there.
    plan = choose("all_reduce", 0, 2, 1 << 20, 4, limits=Limits(one_shot_nbytes=0)).exchange
    folds = [step for loop in plan.loops for step in loop.steps if isinstance(step, Reduce)]
    assert folds
    assert all(step.dst in step.sources for step in folds)
