"""Notes of waits in which a library holds the thread: a thread of shmring writes them (`core/sync/long_waits.pyx`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from shmring.core.base.program_line import line_of_thread, on_behalf_of
from shmring.core.sync.long_waits import WaitNotes, seconds_to_first

_waits: dict[int, tuple[Callable[[], str], WaitNotes]] = {}  # by thread
_watched_by = 0  # the process with the thread that writes the notes: a fork has no threads


class noted:
    """A context around one wait; ``what`` returns what is waited for. Waits of one thread are not nested."""

    def __init__(self, what: Callable[[], str]) -> None:
        self._what = what

    def __enter__(self) -> None:
        global _watched_by
        if seconds_to_first() is None:
            return
        _waits[threading.get_ident()] = self._what, WaitNotes()
        if _watched_by != os.getpid():
            _watched_by = os.getpid()
            threading.Thread(target=_watch, name="shmring notes of waits", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        _waits.pop(threading.get_ident(), None)


def _watch() -> None:
    pause = threading.Event()
    while not pause.wait(max(0.01, (seconds_to_first() or 0) / 4)):
        for thread, (what, notes) in list(_waits.items()):
            with on_behalf_of(line_of_thread(thread)):
                notes.look(what())
