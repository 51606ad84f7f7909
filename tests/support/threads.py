"""Threads of one process that start at once: all are joined, and what one of them raises is raised."""

from __future__ import annotations

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
