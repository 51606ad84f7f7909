"""The registry of objects that must act when this process forks or exits, in one order.

Each object has `disown`, called in a forked child, which has inherited the object and must not use it, and
`leave_at_exit`. Objects of an upper room leave first, since they still need those of the rooms below.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from shmring.core.base.unraisable import report_unraisable
from shmring.core.base.weak_set import WeakSet


class Stage(enum.IntEnum):
    """The order in which objects leave."""

    MULTINODE = 0
    PROGRESS = 1
    ENGINE = 2


class Tracked(Protocol):
    """The methods that the registry calls."""

    def disown(self) -> None:
        """Note that this process is a forked child and not the object's owner."""

    def leave_at_exit(self) -> None:
        """Leave without waiting for peers; they get an error if they still need this rank. Idempotent."""


_tracked: dict[Stage, WeakSet[Tracked]] = {stage: WeakSet() for stage in Stage}
_in_child: list[Callable[[], None]] = []
_at_exit: list[Callable[[], None]] = []
_exiting_thread: int | None = None
_has_ended_calls = False

LAST_WORDS_S = 0.2  # at exit, for threads with calls that were ended, to print their errors
HELD_S = 1.0  # in which most processes end


def track(thing: Tracked, stage: Stage) -> None:
    """Have ``thing`` disowned in forked children, and leave at exit, as long as it lives."""
    _tracked[stage].add(thing)


def tracked(stage: Stage) -> list[Any]:
    """The objects of a stage that are alive."""
    return list(_tracked[stage])


def in_child(renew: Callable[[], None]) -> Callable[[], None]:
    """Have ``renew()`` called in forked children: for locks that a thread of the parent may have held. A decorator."""
    _in_child.append(renew)
    return renew


def at_exit(release: Callable[[], None]) -> Callable[[], None]:
    """Have ``release()`` called at exit, after all objects have left. A decorator."""
    _at_exit.append(release)
    return release


def leave(last: Stage, first: Stage = Stage.MULTINODE) -> None:
    """Let the objects of the stages from ``first`` to ``last`` leave."""
    for stage in Stage:
        if first <= stage <= last:
            for thing in tracked(stage):
                try:
                    thing.leave_at_exit()
                except BaseException as error:  # the others leave all the same
                    report_unraisable(error, thing.leave_at_exit)


def exit_reason() -> str | None:
    """The uncaught exception that ends the interpreter, as text for peers; None if there is none."""
    if hasattr(sys, "ps1"):  # interactive, also in a notebook: it has gone on after each uncaught exception
        return None
    failure = getattr(sys, "last_value", None)  # set where an uncaught exception was printed
    return None if failure is None else f"exited with {type(failure).__name__}: {failure}"


def note_ended_call() -> None:
    """At exit, a call of another thread was ended, which raises in it."""
    global _has_ended_calls
    _has_ended_calls = True


def hold_at_exit() -> None:
    """Sleep, in a thread that begins a call while another thread ends the interpreter."""
    if _exiting_thread not in (None, threading.get_ident()):
        time.sleep(HELD_S)


def _await_last_words() -> None:
    """Wait until the threads in which a call was ended have ended, or for `LAST_WORDS_S`.

    They print their error, and the interpreter aborts if it ends a thread that is writing to standard error.
    """
    deadline = time.monotonic() + LAST_WORDS_S
    for thread in threading.enumerate():
        if thread.daemon:  # at exit all others have ended
            with contextlib.suppress(AssertionError, RuntimeError):  # not made by `threading`: cannot be joined
                thread.join(max(0.0, deadline - time.monotonic()))


def _leave_all() -> None:
    global _exiting_thread
    leave(Stage.PROGRESS)
    # From here on, since progress threads must end first: their calls raise at once.
    _exiting_thread = threading.get_ident()
    leave(Stage.ENGINE, first=Stage.ENGINE)
    if _has_ended_calls:
        _await_last_words()
    for release in _at_exit:
        release()


def _disown_all() -> None:
    global _exiting_thread
    _exiting_thread = None
    for renew in _in_child:
        renew()
    for stage in Stage:
        for thing in tracked(stage):
            thing.disown()


os.register_at_fork(after_in_child=_disown_all)
atexit.register(_leave_all)
