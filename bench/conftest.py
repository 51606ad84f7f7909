"""Which shmring is measured, and processes beside that of pytest."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

# `python -m pytest` puts the checkout first on the path. Where it is not compiled, the installed shmring is meant.
ROOT = Path(__file__).resolve().parents[1]
if not any((ROOT / "shmring").rglob("*.so")):
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

from sides import beside  # noqa: E402
from support import harness  # noqa: E402


def pytest_sessionstart(session):
    """Make the process that ranks are forked from, before collection: JAX compiles then, and a fork of it cannot."""
    harness.nursery()


def pytest_unconfigure(config):
    """End it with the run."""
    harness.close_nursery()


@pytest.fixture
def child():
    """``child(function, *args)`` runs it in a process on the other processor; this one is pinned to the first."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two processes need a processor each")
    with ExitStack() as stack:
        yield lambda function, *args: stack.enter_context(beside(function, *args))
