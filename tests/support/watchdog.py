"""A plugin of pytest: a test that hangs is ended, with the stacks of all threads.

Its process ends with it; xdist names the test and goes on with the others in a new process. pytest's own
``faulthandler_timeout`` is one number, which neither ``--long`` nor an emulator prolongs.
"""

import faulthandler
import os
import time

import pytest

from support.harness import PATIENCE

SHORT_S, LONG_S = 600, 3000  # without and with --long
# A limit is a thread of the process, which each test would start and join. So one limit serves the tests of a minute.
SHARED_S = 60

_set_at = float("-inf")


def pytest_configure(config):
    """Keep standard error as it is before pytest captures it."""
    config.shmring_stderr = os.dup(2)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Limit the time of one test."""
    global _set_at
    now = time.monotonic()
    if now > _set_at + SHARED_S:
        limit = PATIENCE * (LONG_S if item.config.getoption("--long") else SHORT_S)
        faulthandler.dump_traceback_later(limit + SHARED_S, exit=True, file=item.config.shmring_stderr)
        _set_at = now


def pytest_unconfigure():
    """The end of the run has no limit."""
    faulthandler.cancel_dump_traceback_later()
