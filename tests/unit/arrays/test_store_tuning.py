"""Learning how to store: what is tried when, and what is made of it."""

from support import compiled

replay = compiled.load("array_hooks").replay

NEAR, FAR = (10, 17), (40, 10)


def test_after_warming_up_both_ways_are_tried_and_the_quicker_is_kept():
    made = replay([FAR] * 100)
    assert made[:6] == [(False, False)] * 2 + [(False, True)] * 2 + [(True, True)] * 2
    assert made[6:16] == [(True, False)] * 10
    assert replay([NEAR] * 100)[6:16] == [(False, False)] * 10


def test_a_change_of_placement_is_noticed_within_two_periods():
    first, period = 112, 128  # the first of full length begins when 8 + 16 + 32 tries have been made
    for before, after, better in ((NEAR, FAR, True), (FAR, NEAR, False)):
        made = replay([before] * (first + 100) + [after] * 500)
        assert made[first + period + 1] == (not better, False)
        assert made[first + 2 * period + 6 : first + 3 * period] == [(better, False)] * (period - 6)


def test_which_way_is_tried_first_takes_turns():
    made = [way for way, is_trial in replay([NEAR] * 300) if is_trial]
    assert made == [False, False, True, True, True, True, False, False] * 2 + [False, False, True, True]


def test_caches_that_are_cold_wherever_trials_begin_decide_nothing_for_long():
    costs = [NEAR] * 500
    for start in (2, 18, 50, 114, 242, 370):
        costs[start : start + 2] = [(50, 50)] * 2
    made = replay(costs)
    assert made[22:] == [(is_trial and way, is_trial) for way, is_trial in made[22:]]


def test_early_verdicts_are_soon_looked_into_again():
    trials = [i for i, (_, is_trial) in enumerate(replay([NEAR] * 1000)) if is_trial]
    assert trials[::4] == [2, 18, 50, 114, 242, 370, 498, 626, 754, 882]
    made = replay([FAR] * 10 + [NEAR] * 90)      # a cold start
    assert made[10:16] == [(True, False)] * 6
    assert made[22:48] == [(False, False)] * 26


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
    assert len(trials[0]) == 10 * 4
