"""A plugin of pytest: a test that hangs is ended, with the stacks of all threads.

Its process ends with it; xdist names the test and goes on with the others in a new process. pytest's own
``faulthandler_timeout`` is one number, which neither ``--long`` nor an emulator prolongs.
"""

import faulthandler
import os

import pytest

from support.harness import PATIENCE

SHORT_S, LONG_S = 300, 3000  # without and with --long


def pytest_configure(config):
    """Keep standard error as it is before pytest captures it."""
    config.shmring_stderr = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Limit the time of one test."""
    limit = PATIENCE * (LONG_S if item.config.getoption("--long") else SHORT_S)
    faulthandler.dump_traceback_later(limit, exit=True, file=item.config.shmring_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
