"""Failures that follow from another process's: how they are known, and how long their process waits for that one."""

import os
import signal

import pytest
from support.children import in_child

from shmring.core.base import followed
from shmring.errors import AbortedError, PeerLostError


@pytest.fixture
def followed_error(monkeypatch):
    """An error that was raised since another rank had aborted."""
    monkeypatch.setattr(followed, "_texts", followed.deque(maxlen=32))
    monkeypatch.setattr(followed, "_print", print)  # no hook is set
    error = AbortedError("world: rank 2 aborted: no data", 2)
    followed.follow(error, 0)
    return error


def raised_while_handling(error):
    try:
        try:
            raise error
        except AbortedError:
            raise ValueError("this step failed") from None
    except ValueError as after:
        return after


def test_errors_that_follow_are_known_by_their_kind_their_text_and_what_they_were_raised_from(followed_error):
    assert followed.is_followed(followed_error)
    assert followed.is_followed(AbortedError(*followed_error.args))
    assert followed.is_followed(RuntimeError(f"error in a hook: {followed_error}"))
    assert followed.is_followed(raised_while_handling(followed_error))
    assert followed.is_followed(PeerLostError("the peer died"))


def test_errors_of_this_rank_do_not_follow(followed_error):
    assert not followed.is_followed(AbortedError("world: rank 0 aborted: KeyboardInterrupt", 0))
    assert not followed.is_followed(ValueError("no such file"))
    circle = ValueError("first")
    circle.__cause__ = ValueError("second")
    circle.__cause__.__cause__ = circle
    assert not followed.is_followed(circle)


def test_a_process_that_has_ended_is_waited_for_and_one_that_lives_on_only_once(followed_error, monkeypatch):
    waits = []
    await_end = followed._await_end

    def noted(pid, seconds):
        waits.append(seconds)
        return await_end(pid, seconds)

    monkeypatch.setattr(followed, "_await_end", noted)
    monkeypatch.setattr(followed, "_raise_s", 0.1)
    child = in_child(signal.pause)
    followed.follow(followed_error, child)
    followed.follow(followed_error, child)
    os.kill(child, signal.SIGKILL)
    assert await_end(child, 60)  # a zombie has ended
    os.waitpid(child, 0)
    followed.follow(followed_error, child)
    followed.follow(followed_error, child)
    assert waits == [0.1, 0.0, 0.0, 0.1]
