"""What the peers of a process get as the reason of its exit."""

import sys

from shmring.core.base.lifecycle import exit_reason


def test_an_uncaught_exception_is_the_reason_of_an_exit(monkeypatch):
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.delattr(sys, "last_value", raising=False)
    assert exit_reason() is None
    monkeypatch.setattr(sys, "last_value", ValueError("too small"), raising=False)
    assert exit_reason() == "exited with ValueError: too small"


def test_a_session_that_has_gone_on_after_an_exception_is_closed_and_not_aborted(monkeypatch):
    """Notebooks and IPython have prompts, as the interpreter has."""
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    monkeypatch.setattr(sys, "last_value", ValueError("of an earlier cell"), raising=False)
    assert exit_reason() is None
