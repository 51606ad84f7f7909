"""Forked children of a test that needs no ranks: a function in one, and how it ended."""

import contextlib
import os
import random
import signal
import threading
import time
import traceback

from support.harness import PATIENCE
from support.threads import beside

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


@contextlib.contextmanager
def killed_at_random(pids, seed):
    """Meanwhile kill one of the processes of which ``pids()`` returns the ids, every few milliseconds."""
    moment, is_over = random.Random(seed), threading.Event()

    def kill_some():
        for _ in range(200):  # on a busy machine, no worker might live long enough to end a task
            if is_over.is_set():
                return
            time.sleep(moment.uniform(0, 0.02))
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(moment.choice([pid for pid in pids() if pid]), signal.SIGKILL)

    with beside(kill_some):
        try:
            yield
        finally:
            is_over.set()
