"""The dimensions of plans: one way for each combination of their values."""

from shmring.collectives.plan.choose import DIMENSIONS, Way, schedules, ways


def test_there_is_a_way_for_each_combination_the_first_dimension_changing_fastest():
    assert schedules("all_reduce", 2, 1 << 20) == ("two_shot", "exchange")
    names, rows = ways("all_reduce", 2, 1 << 20, threads=(1, 4))
    assert names == {"schedule": ("two_shot", "exchange"), "threads": ("by rule", "otherwise")}
    assert rows == [Way("two_shot", 1), Way("exchange", 1), Way("two_shot", 4), Way("exchange", 4)]
    assert list(names) == [one.name for one in DIMENSIONS if not one.values]


def test_a_dimension_with_one_value_multiplies_nothing():
    names, rows = ways("scan", 2, 1 << 20)
    assert names == {"schedule": ("staged",), "threads": ("by rule",)}
    assert rows == [Way("staged")]
