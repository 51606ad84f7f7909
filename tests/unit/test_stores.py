"""Learning how to store: what is tried when, and what is made of it."""

from shmring.stores import replay

NEAR, FAR = (10, 17), (40, 10)


def test_the_first_period_tries_both_ways_and_keeps_the_quicker():
    made = replay([FAR] * 100)
    assert made[:5] == [(False, False), (False, True), (False, True), (True, True), (True, True)]
    assert made[5:] == [(True, False)] * 95
    assert replay([NEAR] * 100)[5:] == [(False, False)] * 95


def test_a_change_of_placement_is_noticed_in_the_next_period():
    made = replay([NEAR] * 300 + [FAR] * 900)
    assert made[500] == (False, False)
    assert made[517:1024] == [(True, False)] * 507
    made = replay([FAR] * 300 + [NEAR] * 900)
    assert made[500] == (True, False)
    assert made[517:1024] == [(False, False)] * 507


def test_one_disturbed_call_decides_nothing():
    costs = [NEAR] * 10
    costs[1] = (1000, 17)
    assert replay(costs)[-1] == (False, False)


def test_trials_come_by_number_so_that_all_ranks_try_alike():
    trials = [[i for i, (_, is_trial) in enumerate(replay([cost] * 2000)) if is_trial] for cost in (NEAR, FAR)]
    assert trials[0] == trials[1]
    assert len(trials[0]) == 4 * 4
