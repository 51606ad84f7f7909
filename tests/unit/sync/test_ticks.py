"""The ticks of waits: short in the beginning of each."""

from support import compiled

hooks = compiled.load("wait_hooks")


def test_a_wait_begins_with_short_ticks_though_the_one_before_it_ended_between_two_calls():
    outcome, before, after = hooks.ticks_of_two_waits()
    assert outcome == 0
    assert before > hooks.FIRST_TICK  # it has slept
    assert after == hooks.FIRST_TICK
