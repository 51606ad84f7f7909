"""The looks of a wait that no process ends by waking this one: for a name, for the end of another process.

All other waits sleep by the handshake of `core/sync/backoff.pxd`.
"""

from __future__ import annotations

import time

FIRST_S = 50e-6
TICK_S = 20e-3  # as the waits with a waker, which look at their peers' liveness that often (`config.internals.tick_ms`)


class Pace:
    """Pauses between the looks of one wait: each twice as long as the one before, up to the tick.

    So a wait lasts at most twice as long as what it waits for, and a tick.
    """

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def pause(self) -> None:
        """Sleep until the next look. Signal handlers run meanwhile."""
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, TICK_S)
