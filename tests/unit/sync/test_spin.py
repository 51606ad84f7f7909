"""How long a waiter spins: as long as its waits have shown that spinning pays."""

import pytest
from support import compiled

hooks = compiled.load("wait_hooks")

BUDGET_NS = 1 << 40  # longer than any delay of the machine
SHORT_NS, LONG_NS = BUDGET_NS // 1000, 5 * BUDGET_NS


@pytest.fixture(autouse=True)
def _calm():
    yield
    hooks.forget_long_yields()


@pytest.fixture
def waiter():
    return hooks.Waiter(BUDGET_NS)


@pytest.fixture
def sleepy(waiter):
    for _ in range(hooks.HALVINGS):
        waiter.wait(LONG_NS)
    return waiter


def test_a_wait_that_outlasts_the_budget_halves_it_until_the_waiter_sleeps_at_once(waiter):
    budgets = [waiter.wait(LONG_NS) for _ in range(hooks.HALVINGS + 1)]
    assert budgets == [BUDGET_NS >> i for i in range(hooks.HALVINGS)] + [0]


def test_a_waiter_that_sleeps_at_once_tries_to_spin_now_and_then(sleepy):
    budgets = [sleepy.wait(LONG_NS) for _ in range(2 * hooks.TRIAL)]
    assert budgets == 2 * ([0] * (hooks.TRIAL - 1) + [BUDGET_NS])


def test_a_waiter_that_sleeps_at_once_begins_with_its_longest_tick(waiter):
    ticks = []
    for _ in range(hooks.HALVINGS + 1):
        ticks.append(waiter.first_tick(20_000_000))
        waiter.wait(LONG_NS)
    assert ticks == [hooks.FIRST_TICK] * hooks.HALVINGS + [20_000_000]


def test_short_waits_give_the_budget_back_also_those_in_which_it_slept(sleepy):
    budgets = [sleepy.wait(BUDGET_NS + SHORT_NS) for _ in range(hooks.HALVINGS)]
    assert budgets[:2] == [0, BUDGET_NS >> hooks.HALVINGS - 2]
    assert budgets[-1] == BUDGET_NS


def test_one_long_wait_in_three_leaves_most_of_the_budget(waiter):
    budgets = [waiter.wait(LONG_NS if i % 3 == 0 else SHORT_NS) for i in range(300)]
    assert min(budgets) >= BUDGET_NS // 2


def test_a_short_timeout_that_runs_out_while_spinning_teaches_nothing_and_a_long_one_that_it_does_not_pay(waiter):
    assert [waiter.wait(SHORT_NS, False) for _ in range(9)] == [BUDGET_NS] * 9
    assert [waiter.wait(LONG_NS, False) for _ in range(2)] == [BUDGET_NS, BUDGET_NS // 2]


def test_a_message_that_is_there_at_the_first_look_teaches_nothing(sleepy):
    assert [sleepy.wait(0) for _ in range(9)] == [0] * 9


def test_a_waiter_without_a_budget_learns_nothing():
    waiter = hooks.Waiter(0)
    assert [waiter.wait(LONG_NS) for _ in range(99)] == [0] * 99


def busy_from(now):
    """Two long yields at that time: the module's waits do not yield from then on."""
    hooks.yield_long(now)
    hooks.yield_long(now + 1000)
    return now + 1000


def test_one_long_yield_is_taken_for_an_interrupt_and_two_in_a_row_for_a_busy_processor():
    now = hooks.clock() + (1 << 50)
    hooks.yield_long(now)
    assert not hooks.is_busy_at(now + 1)
    hooks.yield_long(now + hooks.SOON + 1)
    assert not hooks.is_busy_at(now + hooks.SOON + 2)
    second = now + hooks.SOON + 1000
    hooks.yield_long(second)
    assert hooks.is_busy_at(second + 1)
    assert hooks.is_busy_at(second + hooks.FIRST_CROWD - 1)
    assert not hooks.is_busy_at(second + hooks.FIRST_CROWD)


def test_long_yields_among_many_short_ones_are_of_ranks_that_outnumber_the_processors():
    now = hooks.clock() + (1 << 50)
    for _ in range(9):
        now += 1000
        hooks.yield_long(now)
        assert not hooks.is_busy_at(now + 1)
        hooks.yield_shortly(hooks.FEW + 1)
    hooks.yield_long(now + 1000)
    hooks.yield_shortly(hooks.FEW)
    hooks.yield_long(now + 2000)
    assert hooks.is_busy_at(now + 2001)


def test_after_a_period_without_yields_many_short_ones_end_the_doubling():
    now = busy_from(hooks.clock() + (1 << 50)) + hooks.FIRST_CROWD
    hooks.yield_shortly(hooks.FEW + 1)
    hooks.yield_long(now)
    assert not hooks.is_busy_at(now + 1)


def test_each_period_without_yields_is_twice_as_long_as_the_one_before_until_a_yield_after_it_is_short():
    now = busy_from(hooks.clock() + (1 << 51))
    lasts = []
    for _ in range(12):
        until = now
        while hooks.is_busy_at(until):
            until += hooks.FIRST_CROWD
        lasts.append((until - now) // hooks.FIRST_CROWD)
        now = until
        hooks.yield_long(now)
    longest = hooks.LONGEST_CROWD // hooks.FIRST_CROWD
    assert lasts == [min(1 << i, longest) for i in range(12)]
    now = busy_from(now + 2 * hooks.LONGEST_CROWD)  # not soon after it
    assert hooks.is_busy_at(now + hooks.FIRST_CROWD - 1)
    assert not hooks.is_busy_at(now + hooks.FIRST_CROWD)


def test_a_wait_on_a_busy_processor_sleeps_soon_whatever_its_budget():
    waiter = hooks.Waiter(1 << 62)
    busy_from(hooks.clock())
    assert waiter.looks_before_sleep(yields=1000) < 1000
    assert hooks.is_busy_at(hooks.clock())


def test_a_wait_on_a_busy_processor_begins_with_its_longest_tick():
    waiter = hooks.Waiter(BUDGET_NS)
    busy_from(hooks.clock())
    assert waiter.first_tick(20_000_000) == 20_000_000
