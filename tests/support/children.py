"""Forked children of a test that needs no ranks: a function in one, and how it ended."""

import os
import signal
import traceback

from support.harness import PATIENCE

WATCHDOG_S = 500  # less than that of the whole test (`support.watchdog`)


def in_child(function, *args):
    """Run a function in a forked child, which SIGALRM ends if it hangs.

    Returns
    -------
    int
        Its process id, for `status_of`.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.setitimer(signal.ITIMER_REAL, WATCHDOG_S * PATIENCE)
        function(*args)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def status_of(pid):
    """How a child ended: its exit status, or its signal, negative."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid):
    """Kill a child that has not ended, and reap it."""
    os.kill(pid, signal.SIGKILL)
    assert status_of(pid) == -signal.SIGKILL
