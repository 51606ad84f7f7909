"""The handshake of a waiter at several counters with their waker, as fast as two threads are."""

import pytest
from support import compiled
from support.threads import at_once

from shmring.channels.word_sleep import can_sleep_on_words

hooks = compiled.load("word_hooks")

needs_words = pytest.mark.skipif(not can_sleep_on_words([]), reason="needs futex_waitv")


@pytest.mark.sample(6)
@needs_words
@pytest.mark.parametrize("start", [0, 2**32 - 1000, 2**62 - 1000, 2**64 - 1000])
@pytest.mark.parametrize("nwords", [2, 5, hooks.WORDS])
def test_no_wake_up_is_lost_wherever_the_waiter_is_on_its_way_to_sleep(nwords, start):
    rounds = 200_000 // (nwords + 10)
    waits = hooks.Waits(nwords, start)
    slept, _ = at_once(lambda: waits.wait(rounds), lambda: waits.wake(rounds))
    assert slept > 0
    assert waits.words_left() == []


def test_one_counter_is_awaited_on_its_semaphore():
    waits = hooks.Waits(1, 2**62 - 1000)
    slept, _ = at_once(lambda: waits.wait(5000), lambda: waits.wake(5000))
    assert slept > 0
    assert waits.words_left() == []
