"""Signals whose handlers raise: at a random moment of a call and at no other, or once in the middle of a wait."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading

import pytest


class EnoughError(BaseException):
    """Of no class that calls turn into errors of their own."""


class Interrupts:
    """Has SIGALRM raise `EnoughError` in the calls that it makes.

    The kernel may deliver the signal to another thread of the process, and Python then calls the handler in the main
    thread when the call is over: it raises nothing there.
    """

    def __init__(self, seed, least_s, most_s):
        self._moment, self._least_s, self._most_s = random.Random(seed), least_s, most_s
        self._may_raise = False
        self.count = 0
        """How many calls have been interrupted."""
        signal.signal(signal.SIGALRM, self._handle)

    def _handle(self, *_):
        if self._may_raise:
            self._may_raise = False
            raise EnoughError

    def during(self, call, *args):
        """Make a call, with a signal after a random time; whether it was interrupted."""
        try:
            self._may_raise = True
            signal.setitimer(signal.ITIMER_REAL, self._moment.uniform(self._least_s, self._most_s))
            call(*args)
            self._may_raise = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        except EnoughError:
            self.count += 1
            return True
        return False


@contextlib.contextmanager
def collector_off():
    """Collect no garbage while the block runs: that calls functions of Python, as those of hypothesis, in which an
    interrupt is lost."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@collector_off()
def interrupt_at_line(function, nth):
    """Call a function and raise SIGINT in this process before the nth line of Python that it executes.

    Returns
    -------
    bool
        Whether `KeyboardInterrupt` has ended the call.
    """
    process, left = os.getpid(), nth

    def trace(_frame, event, _):
        nonlocal left
        if event == "line" and os.getpid() == process:
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@collector_off()
def lines_executed(function):
    """Call a function; how many lines of Python that executes, those of finalizers and of weak references included.

    An interrupt in such a line is lost, as Python drops what they raise.
    """
    count = 0

    def trace(_frame, event, _):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(None)
    return count


def interrupted_by_ctrl_c(call, after_s=0.1):
    """Expect that SIGINT, sent so long after its beginning, ends a call that would wait for ever.

    Not a context manager: SIGINT may come before the thread of the call gets as far as a block.
    """
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        call()
    timer.join()
