"""One supervisor of ranks, for `run`, `spawn` and its threads: start, first failure, grace, end, in one order.

The modules that use this one define a rank (a command, a process with a report, a thread), how it is ended and how its
end becomes known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

TICK_S = 1.0  # of a wait, so that it is known when this process was stopped


class Rank:
    """One rank: not started, running, or ended.

    Attributes
    ----------
    number : int
    running : bool
    failed_at : float
        When it was known to have failed, by `time.monotonic`; 0: it has not failed.
    followed : bool
        Of a failure: another rank's failure, or this process, brought it about.
    is_ended_here : bool
        This process has asked it to end, or killed it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.running = False
        self.failed_at = 0.0
        self.followed = False
        self.is_ended_here = False

    @property
    def failed(self) -> bool:
        """Whether it is known that the rank failed."""
        return self.failed_at > 0

    def fail(self, followed: bool) -> None:
        """Note that the rank has failed."""
        self.followed, self.failed_at = followed, time.monotonic()

    def end(self, by_force: bool) -> None:
        """End the rank if it is running: ask it to end, or kill it."""
        if self.running:
            self.is_ended_here = True
            self.stop(by_force)

    def start(self) -> None:
        """Start it, and set ``running``, also if this raises and it runs all the same."""
        raise NotImplementedError

    def stop(self, by_force: bool) -> None:
        """As `end`, of a rank that is running."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what this process has of it; it has ended, if it can be ended."""


AnyRank = TypeVar("AnyRank", bound=Rank)


class Supervisor(Generic[AnyRank]):
    """Starts ranks, waits until they have ended, and ends the others when one has failed.

    Parameters
    ----------
    size : int
        The number of ranks.
    grace : float
        Seconds between two steps of ending them.
    """

    def __init__(self, size: int, grace: float) -> None:
        self.size = size
        self.grace = grace
        self.ranks: list[AnyRank] = []
        self.ends_by_force = False
        self.stopped_s = 0.0

    def make(self, number: int) -> AnyRank:
        """Make a rank, to be started next."""
        raise NotImplementedError

    def look(self, ranks: Sequence[AnyRank], seconds: float) -> None:
        """Wait until one of ``ranks`` has something to show, but no longer; note failures and ends.

        May raise what signal handlers raise, unless `ends_by_force`.
        """
        raise NotImplementedError

    def patience(self) -> float:
        """Seconds that the others still have, after a failure, before they are asked to end."""
        return min(rank.failed_at for rank in self.failed) + self.grace - time.monotonic()

    @property
    def running(self) -> list[AnyRank]:
        """The ranks that have not ended."""
        return [rank for rank in self.ranks if rank.running]

    @property
    def failed(self) -> list[AnyRank]:
        """The ranks that are known to have failed; that which failed first, and by itself, comes first."""
        return sorted((rank for rank in self.ranks if rank.failed), key=lambda rank: (rank.followed, rank.failed_at))

    def supervise(self, timeout: float | None = None, deadline: float = math.inf) -> None:
        """Start all ranks and return when they have ended, whatever happens; `failed` has those that failed.

        Raises `TimeoutError` if some were not done by ``deadline``, which was in ``timeout`` seconds. Time in which
        this process was stopped does not count.
        """
        try:
            for number in range(self.size):
                self.ranks.append(self.make(number))
                self.ranks[-1].start()
            self._attend(lambda: 0.0 if self.failed else deadline + self.stopped_s - time.monotonic())
            if self.running and not self.failed:
                late = ", ".join(str(rank.number) for rank in self.running)
                raise TimeoutError(f"ranks {late} of {self.size} were not done after {timeout} s")
            self._attend(self.patience)
        finally:
            self.end_all()

    def _attend(self, left: Callable[[], float]) -> None:
        """Look at the ranks until all have ended, or until no seconds are left; each look asks for them."""
        while running := self.running:
            seconds = left()
            due = time.monotonic() + (tick := min(max(0.0, seconds), TICK_S))
            self.look(running, tick)
            if seconds <= 0:
                return
            if (late := time.monotonic() - due) > TICK_S:
                self.stopped_s += late

    def end_all(self) -> None:
        """End every rank, by force after the grace, or as soon as a signal handler raises."""
        try:
            for rank in self.ranks:
                rank.end(by_force=False)
            kill_at = time.monotonic() + self.grace
            self._attend(lambda: kill_at - time.monotonic())
        finally:
            self.ends_by_force = True
            self.end_by_force()
            for rank in self.ranks:
                rank.close()

    def end_by_force(self) -> None:
        """End the ranks that are still running, and wait for that."""
        for rank in self.ranks:
            rank.end(by_force=True)
        self._attend(lambda: math.inf)
