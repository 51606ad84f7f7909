"""Signals at any moment: handlers that raise, and handlers that make calls themselves."""

import contextlib
import random
import signal

import surface
from script import FINAL, Interrupted


def attack(script, case):
    """A random program under a storm of signals; a quiet part then shows that nothing stays locked."""
    rng = script.rng
    script.arguments.hostility = 0.1
    script.open()
    script.interrupts += 1  # objects may be lost between a call and the line that keeps its result
    signal.signal(signal.SIGPROF, raising(script) if case % 2 else calling(script, random.Random(rng.random())))
    usual, script.limit = script.limit, storm(script, rng.choice((0.0002, 0.001, 0.003)))
    for _ in range(60):
        script.random_step()
    script.limit = usual
    script.write("# no signals from here on")
    for _ in range(10):
        script.random_step()
    for name in list(script.own):
        if hasattr(script.names[name], "close"):
            script.step(f"{name}.close()", limit_s=5)


def storm(script, pause):
    """In place of `Script.limit`: a signal at each ``pause`` of processor time, one at last for steps that wait."""

    @contextlib.contextmanager
    def limit(_seconds):
        if script.is_limited:  # a step of a handler: the step that it interrupts keeps its timers
            yield
            return
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        signal.setitimer(signal.ITIMER_PROF, pause, pause)
        script.is_limited = True
        try:
            yield
        finally:
            script.is_limited = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)

    return limit


def raising(script):
    """A handler that raises."""

    def handler(_number, _frame):
        if script.is_limited:
            raise Interrupted

    return handler


def calling(script, dice):
    """A handler that uses an object itself, perhaps the one that it interrupts."""
    is_busy = False

    def handler(_number, _frame):
        nonlocal is_busy
        if is_busy or not script.is_limited or not script.own:
            return
        is_busy, label = True, script.label
        script.label = f"{label}    [in the handler] "
        try:
            with contextlib.suppress(Interrupted, KeyError):  # the name may be half-way to its end
                name = dice.choice(script.own)
                member = dice.choice(surface.methods(type(script.names[name])) or ["__repr__"])
                if member not in FINAL:
                    script.use(name, member)
        finally:
            is_busy, script.label = False, label

    return handler
