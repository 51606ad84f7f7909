"""What a signal handler raises in the middle of a call, told from what the call raises itself."""

import signal
import sys

import pytest

from shmring.core.base.interrupts import is_interrupt


class Stop(Exception):
    pass


def named(number, frame):
    raise Stop


def variadic(*args):
    raise Stop


class Handler:
    def __call__(self, number, frame):
        self.stop()

    def stop(self):
        raise Stop


def work(step):
    number, frame = 3, None
    step(number, frame)


def error_of(step):
    try:
        work(step)
    except Stop as error:
        return error


@pytest.mark.parametrize("handler", [named, variadic, Handler()])
def test_an_error_of_a_signal_handler_is_an_interrupt(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert is_interrupt(error_of(lambda number, frame: signal.raise_signal(signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("step", [named, variadic, Handler()])
def test_an_error_of_a_function_that_is_called_is_none(step):
    assert not is_interrupt(error_of(step))


def test_a_function_that_has_another_frame_is_no_handler():
    """A handler has the frame that it interrupts, through which the error passes."""
    elsewhere = [sys._getframe()]

    def step(number, frame):
        named(number, elsewhere[0].f_back)

    assert not is_interrupt(error_of(step))


def test_an_error_that_was_not_raised_is_none():
    assert not is_interrupt(Stop())
