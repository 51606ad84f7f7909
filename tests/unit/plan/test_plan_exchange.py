"""Exchange: where it is tried, and how its folds store."""

from shmring.collectives.plan.choose import EXCHANGE_RANKS, build_plan, schedules
from shmring.collectives.plan.limits import LINE, Limits
from shmring.collectives.plan.steps import Reduce

LIMITS = Limits(one_shot_nbytes=0)


def test_an_exchange_is_tried_where_every_rank_has_a_slice_and_ranks_are_few():
    assert schedules("all_reduce", 2, 1 << 20, LIMITS) == ("two_shot", "exchange")
    assert schedules("all_reduce", EXCHANGE_RANKS, 3 * LINE + 4, LIMITS) == ("two_shot", "exchange")
    assert schedules("all_reduce", 2, LINE, LIMITS) == ("two_shot",)
    assert schedules("all_reduce", 4, 3 * LINE, LIMITS) == ("two_shot",)
    assert schedules("all_reduce", EXCHANGE_RANKS + 1, 1 << 20, LIMITS) == ("two_shot",)
    assert schedules("reduce_scatter", 2, 1 << 20, LIMITS) == ("staged",)


def test_an_element_comes_over_once_with_its_ownership():
    # The fold stores into the slot first, in the same pass in which it loads from there.
    plan = build_plan("all_reduce", "exchange", 0, 2, 1 << 20, 4)
    folds = [step for loop in plan.loops for step in loop.steps if isinstance(step, Reduce)]
    assert folds
    assert all(step.dst in step.sources for step in folds)
