"""Learning how to store: what is tried when, and what is made of it."""

from shmring.stores import replay

NEAR, FAR = (10, 17), (40, 10)


def test_after_warming_up_both_ways_are_tried_and_the_quicker_is_kept():
    made = replay([FAR] * 100)
    assert made[:6] == [(False, False)] * 2 + [(False, True)] * 2 + [(True, True)] * 2
    assert made[6:] == [(True, False)] * 94
    assert replay([NEAR] * 100)[6:] == [(False, False)] * 94


def test_a_change_of_placement_is_noticed_in_the_next_period():
    period = 256
    for before, after, better in ((NEAR, FAR, True), (FAR, NEAR, False)):
        made = replay([before] * 100 + [after] * 500)
        assert made[period + 1] == (not better, False)
        assert made[period + 6 : 2 * period] == [(better, False)] * (period - 6)


def test_one_disturbed_call_decides_nothing():
    for disturbed in (2, 3):
        costs = [NEAR] * 10
        costs[disturbed] = (1000, 17)
        assert replay(costs)[-1] == (False, False)


def test_only_the_last_two_tries_of_each_way_count():
    costs = [(10, 17)] * 3 * 5
    costs[5:8] = [(1000, 17)] * 3      # the slots still lie where the other way has left them
    costs[10:13] = [(10, 1)] * 3
    assert replay(costs + [(10, 17)] * 5, tries=5)[-1] == (False, False)


def test_trials_come_by_number_so_that_all_ranks_try_alike():
    trials = [[i for i, (_, is_trial) in enumerate(replay([cost] * 1000)) if is_trial] for cost in (NEAR, FAR)]
    assert trials[0] == trials[1]
    assert len(trials[0]) == 4 * 4
