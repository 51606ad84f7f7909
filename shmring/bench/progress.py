"""A bar on standard error, where that is a terminal; nothing where it is not."""

from __future__ import annotations

import sys
import time

WIDTH = 28
CLEAR = "\r\x1b[K"  # back to the start of the line, and clear it


class Progress:
    """Shows what is under way, how far it is, and how long the rest will take at this pace."""

    def __init__(self) -> None:
        self.is_shown = sys.stderr.isatty()
        self._started = time.monotonic()

    def __call__(self, what: str, done: float) -> None:
        """``done`` of 1 is all."""
        if not self.is_shown:
            return
        filled = int(WIDTH * done)
        left = f"{(time.monotonic() - self._started) * (1 - done) / done:.0f} s left" if done else ""
        print(f"{CLEAR}[{'#' * filled}{'.' * (WIDTH - filled)}] {what}  {left}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Make room for other lines."""
        if self.is_shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)
