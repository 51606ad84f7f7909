"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
import time

WIDTH = 28
CLEAR = "\r\x1b[K"  # back to the start of the line, and clear it


class Progress:
    """Shows the current step, the fraction done, and an estimate of the remaining time."""

    def __init__(self) -> None:
        self.is_shown = sys.stderr.isatty()
        self._started = time.monotonic()

    def __call__(self, what: str, done: float) -> None:
        """Show that the fraction ``done`` is complete and ``what`` comes next."""
        if not self.is_shown:
            return
        filled = int(WIDTH * done)
        left = f"{(time.monotonic() - self._started) * (1 - done) / done:.0f} s left" if done else ""
        print(f"{CLEAR}[{'#' * filled}{'.' * (WIDTH - filled)}] {what}  {left}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the bar before other output."""
        if self.is_shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)
