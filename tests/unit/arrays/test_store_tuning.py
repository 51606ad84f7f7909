"""Learning how to store: what is tried when, and what is made of it."""

import pytest
from support import compiled

from shmring.kernel.reduce import STORES

replay = compiled.load("array_hooks").replay

NEAR, FAR, XEON, ZEN = (10, 17, 12, 11), (40, 10, 30, 20), (20, 17, 12, 15), (40, 14, 30, 10)
BEST = {NEAR: 0, FAR: 1, XEON: 2, ZEN: 3}
EACH = range(len(STORES))


@pytest.mark.parametrize("cost", BEST)
def test_after_warming_up_every_kind_is_tried_and_the_quickest_is_kept(cost):
    made = replay([cost] * 100)
    assert made[:2] == [(0, False)] * 2
    assert made[2:10] == [(kind, True) for kind in EACH for _ in range(2)]
    assert made[10:16] == [(BEST[cost], False)] * 6


@pytest.mark.parametrize("before", BEST)
@pytest.mark.parametrize("after", BEST)
def test_a_change_of_placement_is_noticed_within_two_periods(before, after):
    first, period = 240, 256  # the first of full length begins when 8 + 16 + 32 + 64 tries have been made
    made = replay([before] * (first + 100) + [after] * 1000)
    assert made[first + period + 1] == (BEST[before], False)
    assert made[first + 2 * period + 10 : first + 3 * period] == [(BEST[after], False)] * (period - 10)


def test_each_period_begins_with_another_kind():
    made = [kind for kind, is_trial in replay([NEAR] * 300) if is_trial]
    firsts = (0, 1, 2, 3, 0)
    assert made == [(first + number) % 4 for first in firsts for number in EACH for _ in range(2)]


def test_caches_that_are_cold_wherever_trials_begin_decide_nothing_for_long():
    costs = [NEAR] * 700
    for start in (2, 18, 50, 114, 242, 498):
        costs[start : start + 2] = [(50, 50, 50, 50)] * 2
    made = replay(costs)
    assert made[26:] == [(kind if is_trial else 0, is_trial) for kind, is_trial in made[26:]]


def test_early_verdicts_are_soon_looked_into_again():
    trials = [i for i, (_, is_trial) in enumerate(replay([NEAR] * 1000)) if is_trial]
    assert trials[::8] == [2, 18, 50, 114, 242, 498, 754]
    made = replay([FAR] * 10 + [NEAR] * 90)      # a cold start
    assert made[10:18] == [(1, False)] * 8
    assert made[26:50] == [(0, False)] * 24


@pytest.mark.parametrize("disturbed", [2, 3])
def test_one_disturbed_call_decides_nothing(disturbed):
    costs = [NEAR] * 12
    costs[disturbed] = (1000, 17, 12, 11)
    assert replay(costs)[-1] == (0, False)


def test_only_the_last_two_tries_of_each_kind_count():
    costs = [NEAR] * 5 * 5
    costs[5:8] = [(1000, 17, 12, 11)] * 3      # the slots still lie where the kind before has left them
    costs[10:13] = [(10, 1, 12, 11)] * 3
    costs[15:18] = [(10, 17, 1, 11)] * 3
    costs[20:23] = [(10, 17, 12, 1)] * 3
    assert replay([*costs, *[NEAR] * 5], tries=5)[-1] == (0, False)


def test_trials_come_by_number_so_that_all_ranks_try_alike():
    trials = [[i for i, (_, is_trial) in enumerate(replay([cost] * 1000)) if is_trial] for cost in BEST]
    assert trials[0] == trials[1] == trials[2]
    assert len(trials[0]) == 7 * 8
