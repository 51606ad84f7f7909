"""Ranks compare where they are in their calls."""

from shmring.nodes.transfers import History, number_of


def after(*calls):
    history = History()
    for number, (what, digest) in enumerate(calls, 1):
        history.note(number, what, digest)
    return history


A, B = ("all_reduce(sum, float32 x 3)", 17), ("broadcast(float32 x 3, root 0)", 18)


def test_ranks_that_have_made_the_same_calls_agree_though_one_is_ahead():
    behind, ahead = after(A, B), after(A, B, A)
    assert ahead.compare(behind.announcement()) == ""
    assert behind.compare(ahead.announcement()) is None
    assert number_of(ahead.announcement()) == 3
    assert behind.compare(behind.announcement()) == ""


def test_ranks_in_different_calls_are_both_shown():
    here, there = after(A, A).compare(after(A, B).announcement())
    assert here == "call 2: all_reduce(sum, float32 x 3)"
    assert there.startswith("call 2: broadcast(float32 x 3, root 0)")


def test_an_earlier_difference_is_found_later():
    assert after(A, B, B, B).compare(after(B, B, B).announcement())
    assert after(A, B, B, B).compare(after(A, B, B).announcement()) == ""


def test_what_is_too_long_ago_is_not_compared():
    ahead = after(*[A] * 2000)
    assert ahead.compare(after(B).announcement()) == ""
