"""Python's signal handlers, held while processes are started and ended, and called where a raise does no harm.

Python calls a handler between any two instructions of the main thread, and Ctrl-C raises there: also between a fork
and the statement that stores the child's process id. `HeldSignals` takes the place of all handlers meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from shmring.core.base.lifecycle import in_child
from shmring.core.memory.descriptor import above_standard

NO_SIGNAL = b"\0"  # among the numbers of signals, as event loops write it, too


class HeldSignals:
    """A context in which Python's signal handlers run only in `deliver`, and those of the last signals at its end.

    ``fileno()`` is readable while signals wait for `deliver`, also those that the kernel gave to another thread: the
    main one, asleep, would not run Python's part of the handler. Nothing is held in a thread other than the main one,
    where Python calls no handlers. While the main thread is in it SIGCHLD is not ignored, for then the kernel would
    discard the statuses of children.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._waiting: list[tuple[Callable[[int, FrameType | None], Any], int, FrameType | None]] = []
        self._ends: tuple[int, ...] = ()
        self._wakeup_before: int | None = None

    def __enter__(self) -> HeldSignals:
        try:
            if threading.current_thread() is threading.main_thread():
                for number in signal.valid_signals():
                    handler = signal.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        signal.signal(number, self._note)
                    elif number == signal.SIGCHLD and handler == signal.SIG_IGN:
                        self._handlers[number] = handler
                        signal.signal(number, signal.SIG_DFL)
            _active.append(self)
            self._ends = tuple(map(above_standard, os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)))
            if self._handlers:
                self._wakeup_before = signal.set_wakeup_fd(self._ends[1], warn_on_full_buffer=False)
            if self._waiting:
                os.write(self._ends[1], NO_SIGNAL)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._restore()
        finally:
            self._call_handlers()

    def fileno(self) -> int:
        """Readable once a signal has come that `deliver` has not handled."""
        return self._ends[0]

    def deliver(self) -> None:
        """Call the handlers of the signals that have come; raises what they raise."""
        self._pass_on()
        self._call_handlers()

    def disown(self) -> None:
        """In a forked child: the handlers as they were. The signals that wait were meant for the parent."""
        self._waiting.clear()
        self._restore(passes_on=False)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._waiting.append((self._handlers[number], number, frame))
        if self._ends:
            with contextlib.suppress(BlockingIOError):  # full, and so readable
                os.write(self._ends[1], NO_SIGNAL)

    def _call_handlers(self) -> None:
        while self._waiting:
            handler, number, frame = self._waiting.pop(0)
            handler(number, frame)

    def _pass_on(self) -> None:
        """Read the numbers of signals; an event loop around this call awaits them at its own descriptor."""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._ends[0], 4096)
            if self._wakeup_before not in (None, -1):
                os.write(self._wakeup_before, numbers)

    def _restore(self, passes_on: bool = True) -> None:
        if self._wakeup_before is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            if passes_on:
                self._pass_on()
            self._wakeup_before = None
        ends, self._ends = self._ends, ()
        for end in ends:
            os.close(end)
        if self in _active:
            _active.remove(self)
        try:
            for number, handler in list(self._handlers.items()):
                signal.signal(number, handler)
                del self._handlers[number]
        except BaseException:  # of a handler that is back
            self._restore()
            raise


_active: list[HeldSignals] = []


@in_child
def _disown_all() -> None:
    for held in reversed(list(_active)):
        held.disown()
