"""Threads of one process, at once or beside a block: all are joined, and what one of them raises is raised."""

from __future__ import annotations

import contextlib
import sys
import threading


def at_once(*functions):
    """Call each in a thread of its own, all at once; what they return in that order, or the first error raised.

    Threads take turns at the interpreter far more often than usual meanwhile.
    """
    start, results, raised = threading.Barrier(len(functions)), [None] * len(functions), []

    def run(place, function):
        start.wait()
        try:
            results[place] = function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(functions)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    if raised:
        raise raised[0]
    return results


@contextlib.contextmanager
def beside(function, *args, **kwargs):
    """Run a function in a thread while the block runs, and join it; the thread, which has ``result`` then.

    If the block raises, the thread is not waited for: it may wait for what the block did not do.
    """

    class Beside(threading.Thread):
        result, raised = None, None

        def run(self):
            try:
                self.result = function(*args, **kwargs)
            except BaseException as error:
                self.raised = error

    thread = Beside()
    thread.start()
    yield thread
    thread.join()
    if thread.raised is not None:
        raise thread.raised
