"""The progress thread of a communicator: runs asynchronous work in the order of submission.

The ranks of a communicator must all make the same calls in the same order. So the order of everything here must follow
from the program, and never from the speed of a thread. Three rules ensure that.

- Work runs in the order in which it was submitted.
- A synchronous call runs after all work submitted before it (`ProgressThread.drain`).
- A callback has a place in that order, too: that of `Work.add_done_callback` in the program. The calls it makes come
  after those submitted before that line, and before those made after it.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import get_ident
from typing import Protocol

from shmring.core.base.lifecycle import Stage, note_ended_call, track
from shmring.core.base.timeouts import timeout_ns
from shmring.core.sync.turn import Turn
from shmring.errors import ClosedError

TICK_S = 0.1  # of a wait of a thread for another one
LAST_CALLBACK_S = 1.0  # how long the exit of the program waits for a running callback

Item = Callable[[], None]


class Work(Protocol):
    """What is needed here of asynchronous work (`shmring.collectives.calls.async_work`)."""

    @property
    def name(self) -> str:
        """The operation in words."""

    def done(self) -> bool:
        """Whether it has succeeded or failed."""

    def _attach(self, callback: Item) -> None:
        """Run ``callback`` right after this."""


class ProgressThread:
    """A communicator's queue of asynchronous work, and the thread that runs it.

    Only pending items keep the engine alive: a communicator that is dropped while nothing is pending is freed, and its
    thread ends.
    """

    def __init__(self, engine) -> None:
        self.name: str = engine.name
        self.is_inherited = False
        # Re-entrant: a signal handler or a finalizer may submit, too.
        self.turn = Turn(self.name, is_reentrant=True)
        self._changes: SimpleQueue[object] = SimpleQueue()  # wakes the thread
        self._engine = weakref.ref(engine, self._changes.put)
        self._queue: deque[Item] = deque()
        self._nested: deque[Item] = deque()  # submitted by the running item; they run before the rest of the queue
        self._busy = False
        self._retired = False
        self._ended = False
        self._thread: threading.Thread | None = None
        self._runner: int | None = None  # the thread that runs an item: this one's, or one in `run_until`
        track(self, Stage.PROGRESS)

    # ---- any thread ----

    def append(self, item: Item) -> None:
        """Put ``item`` at the end of the queue; or, if the running item submits it, right after that."""
        if self.is_inherited:
            raise ClosedError(f"{self.name}: belongs to the parent process")
        self.turn.run(self._append, item)

    def _append(self, item: Item) -> None:
        if self._ended:
            raise ClosedError(f"{self.name}: is closed")
        if self._thread is None:
            self._start()
        if self.is_own_thread():
            self._nested.append(item)
            return
        if not self._busy:
            self._set_busy(True)
        self._queue.append(item)
        self._changes.put(None)

    def drain(self, timeout: float | None = None) -> None:
        """Return after everything submitted before has run, so that a call made now keeps its place in the order."""
        if self.is_own_thread():
            self.run_nested()
            return
        drained = threading.Lock()
        drained.acquire()
        limit_ns = timeout_ns(timeout)
        if self.turn.run(self._append_unless_ended, drained.release) and not await_release(drained, limit_ns):
            raise TimeoutError(f"work on {self.name!r} is still pending after {timeout} s")

    def _append_unless_ended(self, item: Item) -> bool:
        if self.is_inherited or self._ended:
            return False
        self._append(item)
        return True

    def run_after(self, work: Work, item: Item) -> None:
        """Run ``item`` at this place in the order, but not before ``work`` is done; now if nothing is pending."""
        if not self.turn.run(self._append_after, work, item):
            item()

    def _append_after(self, work: Work, item: Item) -> bool:
        if not self._busy or (self.is_own_thread() and work.done() and not self._nested):
            return False
        self.append(partial(self._run_or_attach, work, item))
        return True

    def is_own_thread(self) -> bool:
        """Whether the caller is a running item: a callback, or the work itself."""
        return self._runner == get_ident() and not self.is_inherited

    def run_until(self, work: Work) -> None:
        """Run items on the calling thread until ``work`` is done or another thread runs one."""
        while not (work.done() or self.is_own_thread()):
            try:
                item = self.turn.run(self._take)
                if item is None:
                    return
                self._run(item, self._queue)
            except BaseException:  # from a signal handler, between two lines: the item may not have run
                self.abort("interrupted while doing asynchronous work")
                raise
            finally:
                self._release()

    def close(self, timeout: float | None) -> None:
        """Wait for pending work, but abort it after ``timeout`` seconds. The engine is closed next."""
        try:
            self.drain(timeout)
        except TimeoutError:
            self.abort(f"closed after waiting {timeout} s for pending work")

    def retire(self) -> None:
        """Let the thread end once the queue is empty: the engine is closed."""
        self._retired = True
        self._changes.put(None)

    def abort(self, reason: str) -> None:
        """Abort the communicator, on all ranks, if work is pending."""
        engine = self._engine()
        if engine is not None and self._busy and not (self.is_inherited or engine.is_closed or engine.is_broken):
            engine.abort(reason)

    def leave_at_exit(self) -> None:
        """Abort pending work and end the thread: the exit of the interpreter cannot wait for work.

        At exit the interpreter freezes daemon threads wherever they are, possibly while one holds the turn, so this
        thread must end first. If a callback prevents that, nothing may take the turn any more.
        """
        engine = self._engine()
        if self.is_inherited or engine is None:
            return
        if self._busy:
            note_ended_call()
        self.abort("exited while asynchronous work was pending")
        self.retire()
        if self._thread is not None:
            self._thread.join(LAST_CALLBACK_S)

    def disown(self) -> None:
        """In a forked child: there is no thread here, and a thread of the parent may have had the turn."""
        self.is_inherited = True
        self.turn.renew()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"shmring {self.name}", daemon=True)
        handled = sys.exc_info()[1]
        try:
            thread.start()
        except (KeyError, RuntimeError) as error:
            # Where a signal handler raises inside of start(), the interpreter's own error may follow its exception.
            raised = error.__context__
            raise error if raised is None or raised is handled else raised from None
        if self._thread is None:  # else a signal handler that submitted work, too, has started another one
            self._thread = thread

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        engine = self._engine()
        if engine is not None:
            engine.has_backlog = busy

    # ---- the thread that runs items ----

    def _serve(self) -> None:
        if not self.turn.run(self._is_the_thread):
            return
        while True:
            item = self.turn.run(self._take)
            if item is not None:
                try:
                    self._run(item, self._queue)
                finally:
                    self._release()
                del item  # it may hold the last reference to the engine
            elif self._ended:
                return
            else:
                self._changes.get()

    def _is_the_thread(self) -> bool:
        """Whether the calling thread is this object's, and not one that a signal handler interrupted at its start."""
        if self._thread is None:
            self._thread = threading.current_thread()
        return self._thread is threading.current_thread()

    def _take(self) -> Item | None:
        """The first item of the queue, to be run by the caller, which has the turn; None if there is none for it."""
        if self.is_inherited or self._runner is not None:
            return None
        if not self._queue:
            self._ended = self._retired or self._engine() is None
            return None
        self._runner = get_ident()
        return self._queue.popleft()

    def _release(self) -> None:
        """The item that the caller took has run; no effect if it took none."""
        self.turn.run(self._release_in_turn)

    def _release_in_turn(self) -> None:
        if self._runner == get_ident():
            self._runner = None
            if not self._queue:
                self._set_busy(False)
            self._changes.put(None)

    def _run(self, item: Item, queue: deque[Item]) -> None:
        """Run one item; what it submits goes to the front of the queue from which it was taken."""
        outer, self._nested = self._nested, deque()
        item()
        self.turn.run(queue.extendleft, reversed(self._nested))
        self._nested = outer

    def run_nested(self, work: Work | None = None) -> None:
        """Run, on this thread, what the running item has submitted, until ``work`` is done.

        The progress thread cannot: it is busy with the running item.
        """
        while self._nested and not (work is not None and work.done()):
            self._run(self._nested.popleft(), self._nested)
        if work is not None and not work.done():
            raise RuntimeError(f"{self.name}: {work.name} comes after this callback, which waits for it")

    def run_next(self, items: list[Item]) -> None:
        """Run these after the running item, before the rest of the queue."""
        self._nested.extend(items)

    def _run_or_attach(self, work: Work, item: Item) -> None:
        """Run ``item``, which has come first in the queue; or after ``work``, if that comes later."""
        if work.done():
            self.run_next([item])
        else:
            work._attach(item)


def await_release(lock: threading.Lock, limit_ns: int) -> bool:
    """Wait until another thread releases a lock; False after ``limit_ns`` nanoseconds (negative: no limit).

    The wait is in ticks: a signal that comes just before the thread sleeps does not wake it. Its handler, Ctrl-C's too,
    runs after the tick.
    """
    deadline_ns = time.monotonic_ns() + limit_ns
    while True:
        left_s = TICK_S if limit_ns < 0 else min(TICK_S, max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9))
        if lock.acquire(timeout=left_s):
            return True
        if limit_ns >= 0 and time.monotonic_ns() >= deadline_ns:
            return False


def progress_of(engine) -> ProgressThread:
    """The progress thread of an engine, made at the first call."""
    return engine.progress or engine.adopt_progress(ProgressThread(engine))
